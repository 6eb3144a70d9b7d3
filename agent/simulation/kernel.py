"""A model of the kernel's cgroup v2: what it accepts, and what follows.

It knows the files of the cpuset controller (member cpusets only), ``cpu.max``, ``cpu.weight`` and
``memory.max``, where anonymous pages are, the enabling of controllers, populated cgroups and
hotplug, each as measured on real kernels (the section of cgroup2-facts stands beside each rule).
It does not know partitions, threaded cgroups made by hand, freezing, ``cpu.max.burst`` and limits
on the number of cgroups; a process has one thread, and pid 0 is nobody.
"""

import errno
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.topology import NodeTopology
from agent.errors import CgroupError, InputError
from agent.ports import GONE, Gone
from agent.simulation.kernel_memory import Memory
from agent.simulation.kernel_mirror import Mirror
from agent.simulation.kernel_tree import Group
from agent.simulation.kernel_values import (
    DEFAULTS,
    LONGEST_WRITE,
    LONGEST_WRITES,
    Possible,
    refusal,
)

Write = tuple[CgroupPath, str, str]
"""A write(2): the cgroup, the file's name, the text."""


@dataclass(slots=True, eq=False)
class _Task:
    pid: int
    home: Group
    confined: tuple[int, CPUSet]
    """The cpuset cgroup that confines it, by inode, and the CPUs that are effective there."""
    mems: NodeSet
    pin: CPUSet | None = None
    """What it has set by sched_setaffinity, within those CPUs."""


class SimulatedKernel:
    """A cgroup v2 hierarchy that follows the kernel's rules, mirrored as files in ``root``.

    ``writes`` logs every write(2) accepted through `write` and `make`, ``foreign_writes`` those
    through `foreign_write` and `absorb`; ``on_write`` is called after each of either.
    ``unpinned`` counts, by pid, how often the kernel dropped a sched_setaffinity mask that the
    process may have had, as kernels before 6.2 do (section 2).  ``memory`` is where pages are.
    """

    def __init__(
        self, topology: NodeTopology, root: Path, *, possible_cpus: int | None = None
    ) -> None:
        """Boot with the CPUs of ``topology`` online; numbers below ``possible_cpus`` may be named.

        Without ``possible_cpus`` the highest online CPU is the last possible one.
        """
        self.writes: list[Write] = []
        self.foreign_writes: list[Write] = []
        self.on_write: Callable[[CgroupPath, str, str], None] | None = None
        self.unpinned: Counter[int] = Counter()
        self._possible = Possible(
            cpus=possible_cpus or max(topology.cpus) + 1, nodes=topology.node_ids
        )
        self.memory = Memory(topology)
        self._lock = threading.RLock()
        self._mirror = Mirror(root)
        self._tasks: dict[int, _Task] = {}
        self._last_pid = 0
        self._last_inode = 1
        self._top = Group(CgroupPath(), self._last_inode, None)
        self._top.cpus, self._top.mems = topology.cpus, topology.memory_nodes
        self._groups = {self._top.path: self._top}
        self._refresh(self._top)

    @property
    def root(self) -> Path:
        """The folder of the mirror."""
        return self._mirror.root

    def read(self, path: CgroupPath, file: str) -> str | Gone:
        """Return a control file's text without the final newline.

        This is the kernel's value; what a person wrote into the mirror counts from `absorb` on.
        What is charged is not mirrored: it changes without any write.
        """
        with self._lock:
            group = self._groups.get(path)
            if group is None:
                return GONE
            charged = self.memory.files(group) if file.startswith("memory.") else {}
            return {**group.files(), **charged}.get(file, GONE)

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        """Give a control file a new value; writing no bytes is no write (section 1).

        Raises `CgroupError` with the errno of the real kernel.
        """
        return self._write(path, file, value, self.writes)

    def foreign_write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        """Write as the kubelet, a runtime, systemd or a person does; otherwise as `write`."""
        return self._write(path, file, value, self.foreign_writes)

    def children(self, path: CgroupPath) -> tuple[CgroupPath, ...]:
        """Return the cgroups directly below, sorted; none where ``path`` has vanished."""
        with self._lock:
            group = self._groups.get(path)
            return tuple(sorted(child.path for child in group.children.values())) if group else ()

    def identity(self, path: CgroupPath) -> int | Gone:
        """Return the inode number, which a re-created directory does not share (section 4)."""
        with self._lock:
            group = self._groups.get(path)
            return GONE if group is None else group.inode

    def make(self, path: CgroupPath) -> None:
        """Create a cgroup (and those above it), with cpuset, cpu and memory enabled for it.

        Raises `CgroupError` (EBUSY) where a cgroup above, except the root, has processes.
        """
        names = path.relative.split("/")
        with self._lock:
            for depth in range(len(names)):
                above = CgroupPath("/".join(names[:depth]))
                if above not in self._groups:
                    self.mkdir(above)
                self._enable_all(self._groups[above])
            if path not in self._groups:
                self.mkdir(path)

    def enable(self, path: CgroupPath) -> None:
        """Enable cpuset, cpu and memory for an existing cgroup, from the top down.

        Raises `CgroupError` (EBUSY) where a cgroup above, except the root, has processes.
        """
        with self._lock:
            for above in reversed([*path.ancestors, CgroupPath()]):
                if above in self._groups:
                    self._enable_all(self._groups[above])

    def mkdir(self, path: CgroupPath) -> None:
        """Create one cgroup below an existing one and enable nothing.

        Raises `CgroupError` with ENOENT, EEXIST or EINVAL.
        """
        with self._lock, self._refusals(path, "", "create"):
            parent = self._group(path.parent)
            parent.vet_child(path.name)
            self._last_inode += 1
            group = Group(path, self._last_inode, parent)
            parent.children[path.name] = self._groups[path] = group
            self._refresh(group)

    def remove(self, path: CgroupPath) -> None:
        """Remove an empty cgroup as rmdir(2) does; nothing happens where it has vanished.

        Raises `CgroupError` (EBUSY) where it has processes or children.
        """
        with self._lock, self._refusals(path, "", "remove"):
            group = self._groups.get(path)
            if group is None:
                return
            if group.parent is None or group.children or group.tasks:
                raise refusal(errno.EBUSY)
            del self._groups[path], group.parent.children[path.name]
            self._mirror.drop(path)

    def add_task(self, path: CgroupPath) -> int:
        """Start a process in a cgroup and return its pid.

        Raises `CgroupError` where `move` would.
        """
        with self._lock, self._refusals(path, "cgroup.procs", "start a process by"):
            home = self._group(path)
            home.vet_process()
            self._last_pid += 1
            confined = home.cpuset.inode, home.cpus
            task = _Task(self._last_pid, home, confined, home.cpuset.mems)
            self._tasks[task.pid] = task
            home.tasks.add(task.pid)
            self._refresh(home)
            return task.pid

    def move(self, pid: int, path: CgroupPath) -> None:
        """Move a process to another cgroup.

        Raises `CgroupError`: ENOENT where that has vanished, ESRCH where there is no such process,
        EBUSY and EOPNOTSUPP as a write to ``cgroup.procs`` does (section 4).
        """
        with self._lock, self._refusals(path, "cgroup.procs", f"write '{pid}' to"):
            self._attach(pid, self._group(path))

    def kill(self, pid: int) -> None:
        """End a process; its cgroup is unpopulated at once (section 4).

        Raises `CgroupError` (ESRCH) where there is no such process.
        """
        with self._lock, self._refusals(CgroupPath(), "", f"kill process {pid} in"):
            home = self._task(pid).home
            self.memory.free(pid)
            del self._tasks[pid]
            home.tasks.remove(pid)
            self._refresh(home)

    def use_memory(self, path: CgroupPath, size: int) -> int | None:
        """Start a process that uses so much; return its pid, None where it was killed for it."""
        pid = self.add_task(path)
        return pid if self.allocate(pid, size) else None

    def allocate(self, pid: int, size: int) -> bool:
        """Let a process use so many bytes more; tell whether it lives (section 3).

        Raises `CgroupError` (ESRCH) where there is no such process.
        """
        with self._lock, self._refusals(CgroupPath(), "", f"find process {pid} in"):
            lives = self.memory.allocate(pid, self._task(pid).home, size)
            if not lives:
                self.kill(pid)
            return lives

    def allowed(self, pid: int) -> CPUSet:
        """Return the CPUs that a process may run on (``Cpus_allowed_list``).

        Raises `CgroupError` (ESRCH) where there is no such process.
        """
        with self._lock, self._refusals(CgroupPath(), "", f"find process {pid} in"):
            task = self._task(pid)
            return task.pin or task.home.cpus

    def pin(self, pid: int, cpus: CPUSet) -> None:
        """Let a process choose among its CPUs (sched_setaffinity; section 2).

        Raises `CgroupError` where there is no such process, and (EINVAL) no such CPU among its own.
        """
        with self._lock, self._refusals(CgroupPath(), "", f"pin process {pid} in"):
            task = self._task(pid)
            if task.home.cpus.isdisjoint(cpus):
                raise refusal(errno.EINVAL)
            task.pin = task.home.cpus & cpus

    def set_online(self, cpus: CPUSet) -> None:
        """Take CPUs offline and online until exactly ``cpus`` are online (section 6).

        Raises `InputError` where that is none, or where one is not possible here.
        """
        if not cpus or not cpus <= CPUSet(range(self._possible.cpus)):
            last = self._possible.cpus - 1
            raise InputError(f"'{cpus}' cannot be online: name some of the CPUs 0-{last}")
        with self._lock:
            self._top.cpus = cpus
            self._refresh(self._top)

    def set_memory_nodes(self, nodes: NodeSet) -> None:
        """Plug and unplug memory until exactly the NUMA nodes ``nodes`` have some.

        Raises `InputError` where that is none, or where one is not on this machine.
        """
        if not nodes or not nodes <= self._possible.nodes:
            raise InputError(
                f"'{nodes}' cannot have memory: name some of the nodes {self._possible.nodes}"
            )
        with self._lock:
            self._top.mems = nodes
            self._refresh(self._top)

    def absorb(self) -> list[Write]:
        """Take over what somebody wrote into the mirror since the last look, as foreign writes.

        Returns what the kernel accepted; what it refused, removed or replaced files are put back.
        """
        with self._lock:
            before = len(self.foreign_writes)
            for path, file, text in self._mirror.edits():
                with suppress(CgroupError):
                    self.foreign_write(path, file, text)
            for path in tuple(self._mirror.spoilt):
                self._mirror.show(path, self._groups[path].files())
            return self.foreign_writes[before:]

    def _write(self, path: CgroupPath, file: str, value: str, log: list[Write]) -> Gone | None:
        with self._lock:
            group = self._groups.get(path)
            if group is None or file not in group.files():
                return GONE
            if not value:
                return None
            with self._refusals(path, file, f"write {value!r} to"):
                if len(value.encode(errors="replace")) > LONGEST_WRITES.get(file, LONGEST_WRITE):
                    raise refusal(errno.E2BIG)
                self._store(group, file, value.partition("\0")[0])
            log.append((path, file, value))
            if self.on_write is not None:
                self.on_write(path, file, value)
            return None

    def _store(self, group: Group, file: str, text: str) -> None:
        if file == "cgroup.procs":
            if not re.fullmatch(r"\d+", text.strip(), re.ASCII):
                raise refusal(errno.EINVAL)
            self._attach(int(text), group)
        elif file == "cgroup.subtree_control":
            group.set_subtree_control(text)
            self._refresh(group)
        elif file in group.settings:
            group.assign(file, text, self._possible)
            self._refresh(group)
        else:
            raise refusal(errno.EINVAL)

    def _attach(self, pid: int, group: Group) -> None:
        task = self._task(pid)
        group.vet_process()
        left, task.home = task.home, group
        left.tasks.remove(pid)
        group.tasks.add(pid)
        self._refresh(left)
        self._refresh(group)

    def _enable_all(self, group: Group) -> None:
        missing = " ".join(f"+{name}" for name in DEFAULTS if name not in group.subtree_control)
        self.write(group.path, "cgroup.subtree_control", missing)

    def _refresh(self, group: Group) -> None:
        """Bring effective sets, processes and mirror up to date after a change of ``group``."""
        group.settle()
        for each in group.walk():
            self._mirror.show(each.path, each.files())
            for pid in each.tasks:
                self._confine(self._tasks[pid])
        for each in group.above():
            self._mirror.show(each.path, each.files())

    def _confine(self, task: _Task) -> None:
        # Linux 6.1: an equal set from another cpuset drops a mask too (section 2).
        confined = task.home.cpuset.inode, task.home.cpus
        if confined != task.confined:
            task.confined, task.pin = confined, None
            self.unpinned[task.pid] += 1
        mems = task.home.cpuset.mems
        if mems != task.mems:
            self.memory.move(task.pid, task.mems, mems)
            task.mems = mems

    def _group(self, path: CgroupPath) -> Group:
        try:
            return self._groups[path]
        except KeyError:
            raise refusal(errno.ENOENT) from None

    def _task(self, pid: int) -> _Task:
        try:
            return self._tasks[pid]
        except KeyError:
            raise refusal(errno.ESRCH) from None

    @contextmanager
    def _refusals(self, path: CgroupPath, file: str, action: str) -> Iterator[None]:
        """Turn refusals of the model into `CgroupError`, as the real hierarchy does."""
        try:
            yield
        except OSError as error:
            where = self.root / path.relative / file
            raise CgroupError(str(where), error.errno or 0, action) from None
