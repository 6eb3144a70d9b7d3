"""The machines that guests can be, and how QEMU is told.

One object makes both the command line and, in the tests, what numalet must then see.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

LOCAL_DISTANCE = 10
REMOTE_DISTANCE = 20
"""What QEMU's SLIT table says where it is told nothing."""


class Thread(NamedTuple):
    """Where a logical CPU is; ``core`` counts within the die."""

    socket: int
    die: int
    core: int
    thread: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestNode:
    """A NUMA node; ``die`` (socket, die) has its CPUs, None for one without.

    ``hugepages`` counts pages of 2 MiB.
    """

    memory_mib: int
    die: tuple[int, int] | None = None
    hugepages: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestTopology:
    """A whole machine; ``cores`` is per die, ``distances`` are given one way and hold both ways.

    ``siblings_apart``: all first threads are numbered before all second ones, as by the firmware
    of most servers (0,4 1,5 …); otherwise siblings are neighbours (0,1 2,3 …).
    """

    nodes: tuple[GuestNode, ...]
    sockets: int = 2
    dies: int = 1
    cores: int = 2
    threads: int = 2
    distances: Mapping[tuple[int, int], int] = field(default_factory=dict)
    siblings_apart: bool = False

    def by_number(self) -> tuple[Thread, ...]:
        """Return the place of every logical CPU; the position is the number it has in the guest."""
        places = [
            Thread(socket, die, core, thread)
            for socket in range(self.sockets)
            for die in range(self.dies)
            for core in range(self.cores)
            for thread in range(self.threads)
        ]
        if self.siblings_apart:
            places.sort(key=lambda place: (place.thread, place))
        return tuple(places)

    def distance(self, a: int, b: int) -> int:
        """Return the distance between two nodes, as the guest's firmware tells it."""
        default = LOCAL_DISTANCE if a == b else REMOTE_DISTANCE
        return self.distances.get((a, b), self.distances.get((b, a), default))

    def qemu_arguments(self) -> Iterator[str]:
        """Yield the part of QEMU's command line that makes this machine."""
        count = len(self.by_number())
        shape = f"sockets={self.sockets},dies={self.dies},cores={self.cores},threads={self.threads}"
        yield from ("-smp", f"{count},{shape}")
        yield from ("-m", f"{sum(node.memory_mib for node in self.nodes)}M")
        for i, node in enumerate(self.nodes):
            memory = f",memdev=memory{i}" if node.memory_mib else ""
            if memory:
                yield from ("-object", f"memory-backend-ram,id=memory{i},size={node.memory_mib}M")
            yield from ("-numa", f"node,nodeid={i}{memory}")
        for i, node in enumerate(self.nodes):
            if node.die is not None:
                socket, die = node.die
                which_die = f",die-id={die}" if self.dies > 1 else ""
                yield from ("-numa", f"cpu,node-id={i},socket-id={socket}{which_die}")
        for (a, b), value in self.distances.items():
            yield from ("-numa", f"dist,src={a},dst={b},val={value}")
            yield from ("-numa", f"dist,src={b},dst={a},val={value}")

    def kernel_arguments(self) -> Iterator[str]:
        """Yield the words of the kernel's command line that belong to this machine."""
        pages = [f"{i}:{node.hugepages}" for i, node in enumerate(self.nodes) if node.hugepages]
        if pages:
            yield "hugepagesz=2M"
            yield f"hugepages={','.join(pages)}"


_TWO_NODES = GuestTopology(
    nodes=(GuestNode(memory_mib=1024, die=(0, 0)), GuestNode(memory_mib=1024, die=(1, 0))),
    distances={(0, 1): 21},
)

TOPOLOGIES: Mapping[str, GuestTopology] = {
    "2n": replace(_TWO_NODES, siblings_apart=True),
    "4n": GuestTopology(
        nodes=tuple(GuestNode(memory_mib=512, die=(i // 2, i % 2)) for i in range(4)),
        dies=2,
        distances={(0, 1): 12, (2, 3): 12, (0, 2): 21, (1, 3): 21, (0, 3): 31, (1, 2): 31},
    ),
    "memory-only": replace(
        _TWO_NODES,
        nodes=(*_TWO_NODES.nodes, GuestNode(memory_mib=1024)),
        distances={(0, 1): 21, (0, 2): 17, (1, 2): 28},
    ),
    "memory-less": replace(
        _TWO_NODES,
        nodes=(GuestNode(memory_mib=1536, die=(0, 0)), GuestNode(memory_mib=0, die=(1, 0))),
    ),
    "hugepages": replace(
        _TWO_NODES,
        nodes=(_TWO_NODES.nodes[0], replace(_TWO_NODES.nodes[1], hugepages=64)),
    ),
    # Large enough for the pods in deploy/examples; a guest costs only the memory that it touches.
    "sample": GuestTopology(
        nodes=tuple(GuestNode(memory_mib=10_240, die=(i, 0)) for i in range(2)),
        cores=4,
        distances={(0, 1): 21},
        siblings_apart=True,
    ),
}
