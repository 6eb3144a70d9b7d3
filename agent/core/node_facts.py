"""What an inspection of a node found, as plain values; `agent.node.inspection` collects them.

Where a kernel does not show something, or it may not be read, the value is None or empty; what may
not be read is named in `NodeFacts.unread`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agent.core.cpuset import CPUSet
from agent.core.topology import NodeTopology


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningProcess:
    """A process or kernel thread, by the name that the kernel knows it by, in full length."""

    pid: int
    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Something that is in the way, and what to do about it."""

    what: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsCgroup:
    """A cgroup in which pods live; ``kind`` is its ``cgroup.type``."""

    path: str
    kind: str
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A cgroup that is a cpuset partition; ``kind`` is its ``cpuset.cpus.partition``."""

    path: str
    kind: str
    cpus: CPUSet


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFacts:
    """The hierarchy at ``root``.

    ``mount`` and ``controllers`` are what `agent.node.cgroupfs.CgroupFs.check` has against it.
    ``is_v2``: its files can be looked at, however it is mounted.  ``unwritable`` are files that
    the user who asks may not write.  ``host_services`` maps what holds the host's own processes
    to the CPUs that they may run on.
    """

    root: str
    mount: Obstacle | None
    controllers: Obstacle | None
    is_v2: bool
    is_host_root: bool
    pods: tuple[PodsCgroup, ...] = ()
    unwritable: tuple[str, ...] = ()
    partitions: tuple[Partition, ...] = ()
    host_services: Mapping[str, CPUSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSetting:
    """``AllowedCPUs=`` or ``AllowedMemoryNodes=`` of a systemd unit, and the file that says so."""

    unit: str
    key: str
    value: str
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletFacts:
    """The policies that the kubelet has; None where nothing says so.

    ``said_by`` is what says so, if not the state files in its ``folder``.
    ``unread`` is what may say so, and could not be read.
    """

    folder: str
    cpu_policy: str | None
    memory_policy: str | None
    unread: tuple[str, ...] = ()
    said_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFolderFacts:
    """The configured state folder.

    ``filesystem`` is the type of the file system that it is, or would be, on.  ``holder`` is the
    pid of the process that holds numalet's lock there.
    """

    path: str
    writable: bool
    filesystem: str
    free_bytes: int
    holder: int | None


@dataclass(frozen=True, slots=True)
class SocketFacts:
    """A unix socket, and whether somebody listens there."""

    path: str
    is_served: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Others:
    """Who else is there that can place containers: what runs, and what the kubelet is set to do."""

    processes: tuple[RunningProcess, ...]
    kubelet: KubeletFacts

    def running(self, *names: str) -> tuple[RunningProcess, ...]:
        """Return the processes that have one of these names."""
        return tuple(process for process in self.processes if process.name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts(Others):
    """Everything that was found.

    ``topology`` is the machine, or why it cannot be understood; ``notes`` is what is odd about it.
    ``interrupts`` maps those that have a handler to the CPUs that they may go to.
    ``irqbalance_banned`` are the CPUs that irqbalance is told to leave alone, None where it is told
    nothing.  ``numa_balancing`` is 0 where the kernel does none.
    """

    release: str
    topology: NodeTopology | str
    notes: tuple[str, ...]
    cgroups: CgroupFacts
    unit_settings: tuple[UnitSetting, ...]
    state_folder: StateFolderFacts
    present: CPUSet
    online: CPUSet
    isolated: CPUSet
    nohz_full: CPUSet
    smt_control: str
    workqueue_cpus: CPUSet | None
    default_irq_cpus: CPUSet | None
    interrupts: Mapping[int, CPUSet]
    irqbalance_banned: CPUSet | None
    numa_balancing: int
    swaps: tuple[str, ...]
    inotify: Mapping[str, int]
    unread: tuple[str, ...]
    pod_resources: SocketFacts | None = None
    """The socket at which the kubelet is asked for devices; None where it is not, or has no folder."""
