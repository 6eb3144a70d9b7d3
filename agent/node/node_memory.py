"""What each NUMA node has left, from /sys/devices/system/node (ABI/stable/sysfs-devices-node)."""

import re
from pathlib import Path

from agent.core.memory_moves import NodeRoom
from agent.errors import EnvironmentProblem
from agent.node.sysfs import SYSFS

_LINE = re.compile(r"Node \d+ (\S+):\s+(\d+) kB", re.ASCII)


class NodeMemory:
    """The nodes of the sysfs tree below ``root``."""

    def __init__(self, root: Path = SYSFS) -> None:
        self._nodes = root / "devices/system/node"

    def read(self) -> dict[int, NodeRoom]:
        """Return what each node has; none where the kernel shows no nodes.

        What the kernel drops when it needs the room are the pages of files, active ones too, that
        need not be written first: as in its own ``MemAvailable`` (``si_mem_available``), here for
        one node.  Raises `EnvironmentProblem`.
        """
        folders = {int(f.name.removeprefix("node")): f for f in self._nodes.glob("node[0-9]*")}
        try:
            return {node: _room(folder) for node, folder in sorted(folders.items())}
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot read {error.filename}: {error.strerror}",
                cure="mount sysfs on /sys where numalet runs",
            ) from error


def _room(folder: Path) -> NodeRoom:
    said = {name: int(kib) * 1024 for name, kib in _LINE.findall((folder / "meminfo").read_text())}
    files = said.get("Active(file)", 0) + said.get("Inactive(file)", 0)
    unwritten = said.get("Dirty", 0) + said.get("Writeback", 0)
    return NodeRoom(
        free_bytes=said.get("MemFree", 0),
        cache_bytes=max(0, files - unwritten),
        huge_bytes={
            (kib := int(pages.name.removeprefix("hugepages-").removesuffix("kB"))): kib
            * 1024
            * int((pages / "free_hugepages").read_text())
            for pages in sorted(folder.glob("hugepages/hugepages-*kB"))
        },
    )
