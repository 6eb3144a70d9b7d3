"""A machine without the hardware: the sysfs tree that a description would show, and back again.

The kernel's formats are those of Documentation/ABI/stable/sysfs-devices-system-cpu and
sysfs-devices-node.  Beside a list there is the mask that other readers (hwloc) want.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.topology import NodeTopology, NumaNode
from agent.errors import EnvironmentProblem, InputError, TopologyError
from agent.simulation.description import (
    DEFAULT_MEM_KIB,
    L3,
    SCHEMA,
    Adjacent,
    CPUFiles,
    Description,
    Listed,
    NumaNodeFiles,
    Offset,
    Single,
    load_description,
    union,
)

_MEMORY_FOLDER = "/dev/shm"  # noqa: S108 - tempfile makes a folder of our own in it
_ROOM_BYTES = 256 << 20
"""A tree takes a page a file, and the largest machines have tens of thousands."""


class TopologyReader(Protocol):
    """What reads a sysfs tree: `agent.node.sysfs.read_topology`, which this room cannot name."""

    def __call__(self, root: Path, *, meminfo: Path) -> NodeTopology:
        """Return the machine below ``root``."""
        ...


def read_machine(path: Path, read: TopologyReader) -> NodeTopology:
    """Return the machine that a description file tells of: what ``read`` makes of its sysfs tree.

    Raises `InputError` that names file, line and key, and `TopologyError` that names the file where
    the machine makes no sense.
    """
    description = load_description(path)
    with TemporaryDirectory(prefix="numalet-sysfs-", dir=_memory_folder()) as folder:
        try:
            return topology_of(description, Path(folder), read)
        except TopologyError as error:
            reason = str(error).replace(folder, "")
            raise TopologyError(f"{path} describes no sound machine: {reason}") from error


def _memory_folder() -> str | None:
    """Return a folder in memory for thousands of small files; None is the choice of `tempfile`."""
    try:
        place = os.statvfs(_MEMORY_FOLDER)
    except OSError:
        return None
    has_room = place.f_bavail * place.f_frsize >= _ROOM_BYTES
    return _MEMORY_FOLDER if has_room and os.access(_MEMORY_FOLDER, os.W_OK | os.X_OK) else None


def topology_of(description: Description, workdir: Path, read: TopologyReader) -> NodeTopology:
    """Write ``sys`` and ``proc/meminfo`` below ``workdir`` and return what ``read`` makes of it."""
    meminfo = workdir / "proc/meminfo"
    write_sysfs(description, workdir / "sys")
    _write({meminfo: _meminfo("", _total_kib(description))})
    return read(workdir / "sys", meminfo=meminfo)


def write_sysfs(description: Description, root: Path) -> None:
    """Write the sysfs tree that the described machine would show below the folder ``root``.

    Raises `InputError` where a tree is there already, since files of two machines must not mix,
    and `EnvironmentProblem` where the tree cannot be written.
    """
    if (root / "devices").exists():
        raise InputError("already holds a sysfs tree: name an empty folder", where=str(root))
    _write({root / path: text for path, text in sysfs_files(description).items()})


def sysfs_files(description: Description) -> dict[str, str]:
    """Return the text of every file of the described machine's sysfs, by path."""
    return dict([*_cpu_files(description), *_cache_files(description), *_node_files(description)])


def describe(topology: NodeTopology, *, name: str) -> Description:
    """Return the description of a topology; reading its tree gives the same topology again.

    The sizes of caches and what is offline are not part of a topology.
    """
    return Description(
        schema=SCHEMA,
        name=name,
        title=(
            f"{topology.socket_count} sockets, {len(topology.nodes)} NUMA nodes,"
            f" {len(topology.cores)} cores, {len(topology.cpus)} CPUs"
        ),
        cpu=CPUFiles(online=topology.cpus),
        packages={key: CPUSet.from_bits(b) for key, b in topology.cpu_bits_by_socket.items()},
        threads=_threads_of(topology),
        l3=_caches_of(topology),
        nodes={node.id: _describe_node(node, topology) for node in topology.nodes},
    )


def _cpu_files(description: Description) -> Iterator[tuple[str, str]]:
    cpu, folder = description.cpu, "devices/system/cpu"
    packages = description.known_packages()
    named = [cpu.online, cpu.per_cpu_online_zero, cpu.present or CPUSet(), *packages.values()]
    there = union([*named, *(description.packages or {}).values()])
    possible = cpu.possible or there
    yield f"{folder}/online", str(cpu.online)
    yield f"{folder}/offline", str(possible - cpu.online if cpu.offline is None else cpu.offline)
    yield f"{folder}/present", str(cpu.present or there)
    yield f"{folder}/possible", str(possible)
    yield f"{folder}/isolated", str(cpu.isolated or CPUSet())
    for i in there:
        # The boot CPU has no such file where it cannot be taken offline.
        if i or i not in cpu.online:
            yield f"{folder}/cpu{i}/online", str(int(i in cpu.online))
    for package, cpus in packages.items():
        yield from _package_files(description, package, cpus & cpu.online)


def _package_files(
    description: Description, package: int, cpus: CPUSet
) -> Iterator[tuple[str, str]]:
    """Yield the ``topology`` folders of a package's online CPUs; offline ones have none."""
    cores: dict[int, CPUSet] = {}
    for i in cpus:
        core = description.threads.core_of(i)
        cores[core] = cores.get(core, CPUSet()) | CPUSet([i])
    for number, threads in enumerate(cores.values()):
        for i in threads:
            folder = f"devices/system/cpu/cpu{i}/topology"
            yield f"{folder}/physical_package_id", str(package)
            yield f"{folder}/core_id", str(number)
            yield f"{folder}/thread_siblings_list", str(threads)
            yield from _set_files(f"{folder}/core_cpus", f"{folder}/core_cpus_list", threads)
            yield from _set_files(f"{folder}/package_cpus", f"{folder}/package_cpus_list", cpus)
            for level, groups in (("book", description.books), ("drawer", description.drawers)):
                for key, members in groups.items():
                    if i in members:
                        yield f"{folder}/{level}_id", str(key)


def _cache_files(description: Description) -> Iterator[tuple[str, str]]:
    for cache in description.l3 or ():
        for i in cache.cpus & description.cpu.online:
            folder = f"devices/system/cpu/cpu{i}/cache/index3"
            yield f"{folder}/level", "3"
            yield f"{folder}/type", "Unified"
            yield from _set_files(
                f"{folder}/shared_cpu_map", f"{folder}/shared_cpu_list", cache.cpus
            )
            if cache.size is not None:
                yield f"{folder}/size", cache.size
            if cache.id is not None:
                yield f"{folder}/id", str(cache.id)


def _node_files(description: Description) -> Iterator[tuple[str, str]]:
    nodes = description.known_nodes()
    if not nodes:
        return
    everywhere = NodeSet(nodes)
    with_memory = NodeSet(i for i, node in nodes.items() if node.shown_kib)
    masks = {
        "online": everywhere,
        "possible": everywhere,
        "has_cpu": NodeSet(i for i, node in nodes.items() if node.cpus & description.cpu.online),
        "has_memory": with_memory,
        "has_normal_memory": with_memory,
    } | description.node_masks
    for name, members in masks.items():
        yield f"devices/system/node/{name}", str(members)
    for i, node in nodes.items():
        folder = f"devices/system/node/node{i}"
        yield from _set_files(f"{folder}/cpumap", f"{folder}/cpulist", node.cpus)
        if node.distance is not None:
            yield f"{folder}/distance", " ".join(map(str, node.distance))
        if node.shown_kib is not None:
            yield f"{folder}/meminfo", _meminfo(f"Node {i} ", node.shown_kib)
        for size, count in node.hugepages.items():
            for name in ("nr_hugepages", "free_hugepages"):
                yield f"{folder}/hugepages/hugepages-{size}/{name}", str(count)


def _set_files(mask_file: str, list_file: str, members: CPUSet) -> Iterator[tuple[str, str]]:
    """Yield a set in both formats: words of 32 bits in hexadecimal, and a list."""
    words = [members.bits]
    while words[0] >> 32:
        words[:1] = [words[0] >> 32, words[0] & 0xFFFF_FFFF]
    yield mask_file, ",".join(f"{word:08x}" for word in words)
    yield list_file, str(members)


def _meminfo(prefix: str, total_kib: int) -> str:
    return "\n".join(f"{prefix}{name}: {total_kib:14} kB" for name in ("MemTotal", "MemFree"))


def _total_kib(description: Description) -> int:
    nodes = description.known_nodes().values()
    return sum(node.shown_kib or 0 for node in nodes) if nodes else DEFAULT_MEM_KIB


def _describe_node(node: NumaNode, topology: NodeTopology) -> NumaNodeFiles:
    kib = node.memory_bytes // 1024
    return NumaNodeFiles(
        cpus=CPUSet.from_bits(topology.cpu_bits_by_node.get(node.id, 0)),
        mem_mib=None if kib % 1024 else kib // 1024,
        mem_kib=kib if kib % 1024 else None,
        distance=list(node.distances) or None,
        hugepages={f"{size}kB": count for size, count in sorted(node.hugepages.items())},
    )


def _threads_of(topology: NodeTopology) -> Single | Adjacent | Offset | Listed:
    """Return the shortest way to say which CPUs share a core."""
    cores = [CPUSet.from_bits(bits) for bits in topology.core_bits.values()]
    widest = max(cores, key=len)
    ids = list(widest)
    if len(ids) == 1:
        return Single(kind="single")
    for guess in (
        Adjacent(kind="adjacent", threads_per_core=len(ids)),
        Offset(kind="offset", threads_per_core=len(ids), offset=ids[1] - ids[0]),
    ):
        keys = [{guess.core_of(cpu) for cpu in core} for core in cores]
        if len(set[int]().union(*keys)) == len(cores) and all(len(key) == 1 for key in keys):
            return guess
    return Listed(kind="list", groups=cores)


def _caches_of(topology: NodeTopology) -> list[L3] | None:
    """Return the L3 caches; None where each core has its socket's id, as without any cache."""
    if all(core.uncore == core.socket for core in topology.cores):
        return None
    return [L3(cpus=CPUSet.from_bits(b), id=i) for i, b in topology.cpu_bits_by_uncore.items()]


def _write(files: Mapping[Path, str]) -> None:
    try:
        for folder in {path.parent for path in files}:
            folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text + "\n", encoding="ascii")
    except OSError as problem:
        message = f"cannot write {problem.filename}: {problem.strerror}"
        raise EnvironmentProblem(message) from problem
