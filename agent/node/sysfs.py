"""Read a machine from a sysfs tree: CPUs, cores, caches, sockets, NUMA nodes, memory, hugepages.

The files are those of Documentation/ABI/stable/sysfs-devices-system-cpu and sysfs-devices-node.
The view is the kubelet's (cAdvisor, ``utils/sysinfo.GetNodesInfo``): the NUMA nodes are the node
directories, and a CPU that belongs to none of them does not count.  Where a machine leaves
something out, a documented value is assumed and a note says so; where it contradicts itself,
`TopologyError` names the file.
"""

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from agent.core.cpuset import CPUSet
from agent.core.topology import Core, NodeTopology, NumaNode
from agent.errors import EnvironmentProblem, TopologyError

SYSFS = Path("/sys")
LOCAL_DISTANCE = 10
REMOTE_DISTANCE = 20
"""``LOCAL_DISTANCE`` and ``REMOTE_DISTANCE`` of the kernel, for firmware without a SLIT table."""

_LARGEST_FILE = 65_536  # bytes; the list of 8192 striped CPUs takes 40 KiB
_UNCORE_LEVEL = 3  # cAdvisor's addCacheInfo: what is above level 2 is an uncore cache
_T = TypeVar("_T")
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO})


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a sysfs tree shows, and a sentence for everything that had to be assumed or left out."""

    topology: NodeTopology
    notes: tuple[str, ...]


def read_topology(root: Path = SYSFS, *, meminfo: Path | None = None) -> NodeTopology:
    """Return the machine that the sysfs tree below ``root`` shows; see `survey`."""
    return survey(root, meminfo=meminfo).topology


def survey(root: Path = SYSFS, *, meminfo: Path | None = None) -> Survey:
    """Return the machine below ``root``, and what is odd about it.

    ``meminfo`` is ``/proc/meminfo`` for a machine without node directories; where not given, the
    file ``proc/meminfo`` beside ``root``.
    Raises `TopologyError` where there is no online CPU, where NUMA nodes overlap or where a file
    has no sense, and `EnvironmentProblem` where one cannot be read.
    """
    return _Surveyor(root, meminfo or root.absolute().parent / "proc" / "meminfo").survey()


def read_online(root: Path = SYSFS) -> CPUSet:
    """Return the online CPUs, with or without a NUMA node.

    Kernels without the file ``cpu/online`` have one in each CPU's folder, save that of a CPU
    which cannot be taken offline.
    """
    folder = root / "devices/system/cpu"
    online = _cpus(folder / "online")
    if online is not None:
        return online
    return CPUSet(i for i, cpu in _numbered(folder, "cpu").items() if _number(cpu / "online") != 0)


def read_possible(root: Path = SYSFS) -> CPUSet | None:
    """Return the CPUs that this kernel can ever have until the next boot; None where it does not say."""
    return _cpus(root / "devices/system/cpu/possible")


def read_isolated(root: Path = SYSFS) -> CPUSet:
    """Return the CPUs that ``isolcpus=`` keeps out of the scheduler's domains."""
    return _cpus(root / "devices/system/cpu/isolated") or CPUSet()


@dataclass(slots=True)
class _Surveyor:
    root: Path
    meminfo: Path
    notes: list[str] = field(default_factory=list)

    def survey(self) -> Survey:
        online = read_online(self.root)
        if not online:
            raise TopologyError(
                f"{self.root}/devices/system/cpu shows no online CPU:"
                f" is {self.root} the root of a sysfs tree, as /sys is?"
            )
        folders = _numbered(self.root / "devices/system/node", "node")
        nodes = self._nodes(folders) if folders else (self._only_node(),)
        cpus = self._cpus_by_node(folders, online)
        sockets = self._sockets(CPUSet(cpu for members in cpus.values() for cpu in members))
        cores = sorted(
            (
                core
                for node, members in cpus.items()
                for core in self._cores(node, members, sockets)
            ),
            key=lambda core: min(core.cpus),
        )
        topology = NodeTopology(
            nodes=nodes, cores=tuple(cores), socket_count=len({core.socket for core in cores})
        )
        return Survey(topology=topology, notes=tuple(self.notes))

    def _only_node(self) -> NumaNode:
        memory = _mem_total(self.meminfo)
        if memory is None:
            self.notes.append(f"neither NUMA nodes nor {self.meminfo}: taken as without memory")
        return NumaNode(
            id=0,
            memory_bytes=memory or 0,
            hugepages=_hugepages(self.root / "kernel/mm"),
            distances=(LOCAL_DISTANCE,),
        )

    def _nodes(self, folders: Mapping[int, Path]) -> tuple[NumaNode, ...]:
        memory = {node: _mem_total(folder / "meminfo") for node, folder in folders.items()}
        rows = {node: _distances(folder / "distance") for node, folder in folders.items()}
        self._note(
            "the memory of NUMA node {} is not shown: taken as none",
            [node for node, amount in memory.items() if amount is None],
        )
        self._note(
            f"the distances of NUMA node {{}} are not shown: {LOCAL_DISTANCE} to itself and"
            f" {REMOTE_DISTANCE} to others assumed",
            [node for node, row in rows.items() if row is None],
        )
        return tuple(
            NumaNode(
                id=node,
                memory_bytes=memory[node] or 0,
                hugepages=_hugepages(folder),
                distances=rows[node] or _assumed_distances(node, list(folders)),
            )
            for node, folder in folders.items()
        )

    def _cpus_by_node(self, folders: Mapping[int, Path], online: CPUSet) -> dict[int, CPUSet]:
        if not folders:
            return {0: online}
        claimed, owned = CPUSet(), dict[int, CPUSet]()
        for node, folder in folders.items():
            # A cpulist may name offline CPUs (POWER, s390): only the online ones count.
            cpus = (_cpus(folder / "cpulist", folder / "cpumap") or CPUSet()) & online
            if not cpus.isdisjoint(claimed):
                raise TopologyError(
                    f"{folder}/cpulist claims CPUs {cpus & claimed} of other NUMA nodes: the"
                    " firmware's tables are wrong; update it, or start the kernel with numa=off"
                )
            claimed |= cpus
            owned[node] = cpus
        if not claimed:
            raise TopologyError(f"no NUMA node of {self.root}/devices/system/node has online CPUs")
        self._note(
            "CPU {} is online but belongs to no online NUMA node: left out", online - claimed
        )
        return owned

    def _sockets(self, cpus: CPUSet) -> dict[int, int]:
        shown = {cpu: _number(self._cpu(cpu) / "topology/physical_package_id") for cpu in cpus}
        nowhere = [cpu for cpu, socket in shown.items() if socket is None or socket < 0]
        self._note("the package of CPU {} is not shown: socket 0 assumed", nowhere)
        return {cpu: max(socket or 0, 0) for cpu, socket in shown.items()}

    def _cores(self, node: int, cpus: CPUSet, sockets: Mapping[int, int]) -> Iterator[Core]:
        while cpus:
            first = min(cpus)
            # Siblings count inside the node and once, whatever the firmware says.
            threads = _siblings(self._cpu(first)) & cpus | CPUSet([first])
            uncore = _uncore(self._cpu(first))
            yield Core(
                cpus=threads,
                node=node,
                socket=sockets[first],
                uncore=sockets[first] if uncore is None else uncore,
            )
            cpus -= threads

    def _cpu(self, cpu: int) -> Path:
        return self.root / f"devices/system/cpu/cpu{cpu}"

    def _note(self, sentence: str, ids: CPUSet | list[int]) -> None:
        if ids:
            self.notes.append(sentence.format(CPUSet(ids)))


def _siblings(cpu: Path) -> CPUSet:
    topology = cpu / "topology"
    for name in ("core_cpus", "thread_siblings"):  # since Linux 5.3; before
        siblings = _cpus(topology / f"{name}_list", topology / name)
        if siblings is not None:
            return siblings
    return CPUSet()


def _uncore(cpu: Path) -> int | None:
    """Return the id of a CPU's L3 cache: its ``id`` file, else the lowest CPU that shares it."""
    for _, cache in sorted(_numbered(cpu / "cache", "index").items()):
        if (_number(cache / "level") or 0) >= _UNCORE_LEVEL:
            given = _number(cache / "id")
            if given is not None:
                return given
            return min(
                _cpus(cache / "shared_cpu_list", cache / "shared_cpu_map") or (), default=None
            )
    return None


def _assumed_distances(node: int, nodes: list[int]) -> tuple[int, ...]:
    return tuple(LOCAL_DISTANCE if other == node else REMOTE_DISTANCE for other in nodes)


def _distances(path: Path) -> tuple[int, ...] | None:
    text = _text(path)
    return None if not text else tuple(_parsed(path, int, word) for word in text.split())


def _mem_total(path: Path) -> int | None:
    """Return ``MemTotal`` of a meminfo file in bytes."""
    text = _text(path)
    if text is None:
        return None
    match = re.search(r"\bMemTotal:\s*(\d{1,18}) kB", text)
    if match is None:
        raise TopologyError(f"{path} has no line 'MemTotal: … kB'")
    return int(match[1]) * 1024


def _hugepages(folder: Path) -> dict[int, int]:
    """Return the number of huge pages of each size in KiB, also where that is 0."""
    sizes = _numbered(folder / "hugepages", "hugepages-", "kB")
    return {size: _number(pages / "nr_hugepages") or 0 for size, pages in sizes.items()}


def _numbered(folder: Path, prefix: str, suffix: str = "") -> dict[int, Path]:
    """Return the entries ``<prefix>N<suffix>`` of a folder by N, ascending; none if it is not."""
    pattern = re.compile(rf"{prefix}(\d{{1,8}}){suffix}", re.ASCII)
    try:
        matches = [match for entry in folder.iterdir() if (match := pattern.fullmatch(entry.name))]
    except OSError as problem:
        if problem.errno in _ABSENT:
            return {}
        raise _unreadable(folder, problem) from problem
    return {int(match[1]): folder / match[0] for match in sorted(matches, key=lambda m: int(m[1]))}


def _number(path: Path) -> int | None:
    text = _text(path)
    return None if not text else _parsed(path, int, text)


def _cpus(list_file: Path, mask_file: Path | None = None) -> CPUSet | None:
    """Return the set in a list file; kernels before 2.6.26 have only the mask."""
    text = _text(list_file)
    if text is not None:
        return _parsed(list_file, CPUSet.parse, text)
    text = _text(mask_file) if mask_file else None
    return _parsed(mask_file, _from_mask, text) if mask_file and text else None


def _from_mask(text: str) -> CPUSet:
    if not re.fullmatch(r"[0-9a-fA-F]{1,8}(,[0-9a-fA-F]{8})*", text):
        raise ValueError(text)
    return CPUSet.from_bits(int(text.replace(",", ""), 16))


def _parsed(path: Path, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as problem:
        raise TopologyError(f"{path} cannot be understood: {text[:80]!r}") from problem


def _text(path: Path) -> str | None:
    """Return a file's text without white space and padding around it; None where it is not."""
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST_FILE + 1)
    except OSError as problem:
        if problem.errno in _ABSENT:
            return None
        raise _unreadable(path, problem) from problem
    if len(data) > _LARGEST_FILE:
        raise TopologyError(f"{path} is larger than {_LARGEST_FILE} bytes: no sysfs file is")
    # Some kernels pad with NUL bytes.
    return data.decode("ascii", errors="replace").strip("\0 \t\n")


def _unreadable(path: Path, problem: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(f"cannot read {path}: {problem.strerror}")
