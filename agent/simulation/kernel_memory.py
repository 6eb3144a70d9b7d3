"""Where the memory of simulated processes is: anonymous pages, and free ones, by NUMA node.

The rules are those of cgroup2-facts section 3.  Pages are charged to the cgroup in which they were
allocated; there is no page cache, no reclaim and no huge page in use, and ``memory.max`` holds
nobody back.
"""

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.core.cpuset import NodeSet
from agent.core.memory_moves import NodeRoom, destination
from agent.core.topology import NodeTopology, NumaNode
from agent.simulation.kernel_tree import Group

_PAGE_BYTES = 4096


@dataclass(slots=True, eq=False)
class _Pages:
    """What one process allocated in one cgroup, by node."""

    pid: int
    group: Group
    sizes: Counter[int] = field(default_factory=Counter)


class Memory:
    """All pages of the machine."""

    def __init__(self, topology: NodeTopology) -> None:
        self._nodes = {node.id: node for node in topology.nodes if node.memory_bytes}
        self._pages: list[_Pages] = []
        self._lock = threading.Lock()  # the kernel's own does not guard `read`

    def read(self) -> dict[int, NodeRoom]:
        """Return what each node has left."""
        with self._lock:
            return {
                i: NodeRoom(
                    free_bytes=self._free(i),
                    huge_bytes={kib: kib * 1024 * count for kib, count in node.hugepages.items()},
                )
                for i, node in self._nodes.items()
            }

    def allocate(self, pid: int, group: Group, size: int) -> bool:
        """Take bytes, in whole pages, from the nodes of a process's cpuset; tell whether they had so much.

        Nothing is taken from other nodes; what does not fit ends in the process being killed.
        """
        pages = _Pages(pid, group)
        left = -(-size // _PAGE_BYTES) * _PAGE_BYTES
        with self._lock:
            for node in group.cpuset.mems:
                part = min(left, self._free(node))
                pages.sizes[node] += part
                left -= part
            self._pages.append(pages)
        return not left

    def move(self, pid: int, old: NodeSet, new: NodeSet) -> None:
        """Move a process's pages as its effective nodes change; what finds no room stays."""
        targets = {node: destination(node, old, new) for node in self._nodes}
        # A node is emptied before it is filled.
        order = sorted(targets, key=lambda node: targets[node] in old)
        with self._lock:
            for pages in (pages for pages in self._pages if pages.pid == pid):
                for node in (node for node in order if targets[node] != node):
                    part = min(pages.sizes[node], self._free(targets[node]))
                    pages.sizes[node] -= part
                    pages.sizes[targets[node]] += part

    def free(self, pid: int) -> None:
        """Give all that a process had back."""
        with self._lock:
            self._pages = [pages for pages in self._pages if pages.pid != pid]

    def files(self, group: Group) -> Mapping[str, str]:
        """Return the files that tell of a cgroup's memory; none where it is not counted."""
        if "memory.max" not in group.settings:
            return {}
        charged: Counter[int] = Counter()
        for pages in self._pages:
            if pages.group.path.is_below(group.path):
                charged += pages.sizes
        anonymous = " ".join(f"N{i}={charged[i]}" for i in self._nodes)
        none = " ".join(f"N{i}=0" for i in self._nodes)
        return {
            "memory.current": str(charged.total()),
            "memory.numa_stat": f"anon {anonymous}\nfile {none}\nshmem {none}\nfile_mapped {none}",
        }

    def _free(self, node: int) -> int:
        taken = sum(pages.sizes[node] for pages in self._pages)
        return _ordinary(self._nodes[node]) - taken if node in self._nodes else 0


def _ordinary(node: NumaNode) -> int:
    """Return the bytes of a node that are not set aside for huge pages."""
    return node.memory_bytes - sum(kib * 1024 * count for kib, count in node.hugepages.items())
