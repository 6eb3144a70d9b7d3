"""The small interfaces between the rooms, and the events that travel on the one queue."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from agent.core.cgroups import CgroupPath
from agent.core.explain import WAITING_FOR_DEVICES, PodVerdict, explain
from agent.core.memory_moves import NodeRoom
from agent.core.overwritten import Overwritten
from agent.core.pods import DeviceNodes, Pod, PodUID
from agent.core.startup import Rules
from agent.core.state import NodeState
from agent.measures import ConfinementReport, MemoryReport


class Gone:
    """The answer of a read or write whose cgroup has vanished: a value, not an exception.

    Cgroups vanish all the time; ENOENT and ENODEV both mean it (cgroup2-facts, section 4).
    """

    _instance: "Gone | None" = None

    def __new__(cls) -> "Gone":
        """Return the only instance."""
        if cls._instance is None:
            cls._instance = super().__new__(cls)
        return cls._instance

    def __repr__(self) -> str:
        return "GONE"

    def __bool__(self) -> bool:
        return False


GONE = Gone()


class Cgroups(Protocol):
    """A cgroup v2 hierarchy: the real one, or a model of it.

    Every method raises `agent.errors.CgroupError` when the kernel refuses, except that a vanished
    cgroup is answered with `GONE`.
    """

    def read(self, path: CgroupPath, file: str) -> str | Gone:
        """Return a control file's text without the final newline."""
        ...

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        """Give a control file a new value in one system call."""
        ...

    def children(self, path: CgroupPath) -> tuple[CgroupPath, ...]:
        """Return the cgroups directly below, sorted; none where ``path`` has vanished."""
        ...

    def identity(self, path: CgroupPath) -> int | Gone:
        """Return the inode number: a re-created directory is another cgroup."""
        ...

    def make(self, path: CgroupPath) -> None:
        """Create a cgroup (and those above it), with cpuset, cpu and memory enabled for it."""
        ...

    def enable(self, path: CgroupPath) -> None:
        """Enable cpuset, cpu and memory for an existing cgroup, from the top down; makes none."""
        ...

    def remove(self, path: CgroupPath) -> None:
        """Remove an empty cgroup; nothing happens where it has vanished."""
        ...


class NodeMemoryReader(Protocol):
    """What the NUMA nodes have left; see `agent.node.node_memory`."""

    def read(self) -> Mapping[int, NodeRoom]:
        """Return what each node has now; raises `agent.errors.EnvironmentProblem`."""
        ...


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a pod was rejected; the kubelet's reason and message."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What survives a restart: who holds what, the pods as they were decided on, and the verdicts."""

    state: NodeState
    pods: Mapping[PodUID, Pod] = field(default_factory=dict)
    rejections: Mapping[PodUID, Rejection] = field(default_factory=dict)


class ContainerName(Protocol):
    """What a container runtime says of a container."""

    @property
    def container(self) -> str | None:
        """Its name in the pod; None for the pod's sandbox."""
        ...

    @property
    def pod_uid(self) -> PodUID:
        """The UID of its pod, as the kubelet knows it."""
        ...

    @property
    def runtime(self) -> str:
        """What runs it (``runc``, ``kata-qemu``), empty where nobody says."""
        ...

    @property
    def has_own_kernel(self) -> bool:
        """Tell whether that is a kernel of its own: the container is no process of this one."""
        ...


class ContainerNames(Protocol):
    """Who knows the names of containers; see `agent.node.bundles`."""

    def name_of(self, container_id: str) -> ContainerName | None:
        """Return what is known of a container, None where nothing is (yet)."""
        ...

    def forget_others(self, container_ids: Collection[str]) -> None:
        """Forget every container but these."""
        ...


class CgroupWatcher(Protocol):
    """Who posts `CgroupsChanged`; see `agent.node.cgroup_watch`."""

    def watch(
        self,
        folders: Iterable[CgroupPath],
        files: Iterable[tuple[CgroupPath, str]] = (),
        *,
        anew: bool = True,
    ) -> None:
        """Watch exactly these from now on: cgroups for those directly below, files for writes.

        Not ``anew``: what is watched already, and was not seen to go or come, need not be looked at.
        """
        ...


class Journal(Protocol):
    """Where values are remembered that are overwritten; see `agent.node.journal`."""

    @property
    def entries(self) -> tuple[Overwritten, ...]:
        """All that was overwritten and not given back."""
        ...

    def note(self, entries: Iterable[Overwritten]) -> None:
        """Remember values about to be overwritten; raises `agent.errors.StateFileError`."""
        ...

    def forget(self, is_over: Callable[[Overwritten], bool]) -> None:
        """Drop what was given back or has gone; raises `agent.errors.StateFileError`."""
        ...


class CheckpointStore(Protocol):
    """Where the agent remembers; see `agent.node.checkpoint`."""

    def keep_loaded(self) -> None:
        """Keep a copy of what was loaded last, since it cannot be true and will be replaced."""
        ...

    def save(self, remembered: Remembered) -> bool:
        """Put it on disk so that it survives a crash at any instruction.

        Returns whether anything was written: what is on disk already is not written again.
        Raises `agent.errors.StateFileError` where the disk refuses; the old copies are then intact.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAnswer:
    """What the API server answered: an HTTP status, and an object, or a text where it sent none.

    ``wait_s`` are the seconds that it asks to wait before the next try.
    """

    code: int
    body: Mapping[str, object] | str
    wait_s: float = 0.0


class ApiServer(Protocol):
    """The API server of the cluster; see `agent.sources.api_requests`."""

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        content_type: str = "application/json",
    ) -> ApiAnswer:
        """Return the answer to one request, whatever it says; ``path`` may end with a query.

        Raises `agent.errors.KubernetesError` where there is none in time.
        """
        ...


class Clock(Protocol):
    """Time, as far as the agent needs it."""

    def now_s(self) -> float:
        """Return seconds since the epoch."""
        ...

    def monotonic_s(self) -> float:
        """Return seconds of a clock that is never set back."""
        ...


@dataclass(frozen=True, slots=True)
class PodsListed:
    """A source's complete list: pods that are not in it are gone.

    ``unreadable`` are those that are there as well, though nobody knows how they are now.  None
    where the source cannot tell whom it could not read: then nobody has gone.
    """

    pods: tuple[Pod, ...]
    unreadable: frozenset[PodUID] | None = frozenset()


@dataclass(frozen=True, slots=True)
class PodChanged:
    """A pod is new or has changed."""

    pod: Pod


@dataclass(frozen=True, slots=True)
class PodGone:
    """The source no longer knows this pod."""

    uid: PodUID


@dataclass(frozen=True, slots=True)
class InputRejected:
    """A source could not use something; ``where`` is a file and line or an object's name.

    An empty ``reason`` says that what was wrong at ``where`` is wrong no longer.
    """

    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class HardwareChanged:
    """A CPU or memory block came or went."""

    what: str


@dataclass(frozen=True, slots=True)
class CgroupsChanged:
    """Something appeared, vanished or was written in a cgroup; in the root: anywhere."""

    path: CgroupPath


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source reports how it is: ``healthy`` with ``detail`` for people."""

    healthy: bool
    detail: str


@dataclass(frozen=True, slots=True)
class DevicesFound:
    """Where a pod's devices are (`Devices.nodes`), so that it can be decided on.

    None: nobody knows, and it shall not wait any longer.
    """

    uid: PodUID
    nodes: DeviceNodes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherManagersFound:
    """Who else places containers on this node by now: programs, by ``names``.

    ``why_not`` says why nothing is enforced beside them; empty: it is.  ``unseen`` is what could not
    be looked at, and may hide others.
    """

    names: tuple[str, ...] = ()
    why_not: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time to look whether anything drifted."""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop; nothing in the cgroups is changed."""

    why: str


Event = (
    PodsListed
    | PodChanged
    | PodGone
    | InputRejected
    | CgroupsChanged
    | HardwareChanged
    | SourceState
    | DevicesFound
    | OtherManagersFound
    | Tick
    | Stop
)
Post = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that is told about the agent, published as one immutable value.

    Counters count since the start of the process: ``writes`` by file, ``drift`` by cause,
    ``decisions`` by outcome (``admitted`` or the reason of the rejection).
    """

    taken_at_s: float
    mode: str
    observe: bool
    rules: Rules
    state: NodeState
    pods: tuple[Pod, ...]
    rejections: Mapping[PodUID, Rejection]
    complaints: Mapping[PodUID, Rejection] = field(default_factory=dict)
    """What pods that keep what they have ask for in vain, and why."""
    rejected_inputs: Mapping[str, str]
    """Files and objects that cannot be read, and why."""
    source: SourceState
    ready: bool
    """Whether a pass has enforced all that it should; from then on for ever.

    One who only observes is ready when he knows the pods.
    """
    cgroup_root: str
    passed_s: float = 0.0
    """When it was taken, of the monotonic clock."""
    tentative: bool = False
    """Whether ``state`` is not to be told yet: the list of pods, or the disk, is behind."""
    unenforced: frozenset[PodUID] = frozenset()
    """Pods whose cgroups are not there yet, or do not say what was decided; memory may be on its way."""
    waiting: frozenset[PodUID] = frozenset()
    """Who of ``pods`` is not decided on before it is known which devices he has."""
    problems: tuple[str, ...] = ()
    other_managers: tuple[str, ...] = ()
    """Programs that place containers on this node, too."""
    warnings: tuple[str, ...] = ()
    """What keeps nobody from working, and should be known."""
    writes: Mapping[str, int] = field(default_factory=dict)
    drift: Mapping[str, int] = field(default_factory=dict)
    decisions: Mapping[str, int] = field(default_factory=dict)
    checkpoints: int = 0
    memory: MemoryReport = field(default_factory=MemoryReport)
    confinement: ConfinementReport = field(default_factory=ConfinementReport)

    @cached_property
    def verdicts(self) -> tuple[PodVerdict, ...]:
        """The verdicts on all pods, worked out when somebody asks."""
        return tuple(self.verdict_on(pod) for pod in self.pods)

    def verdict_on(self, pod: Pod) -> PodVerdict:
        """Return the verdict on one of ``pods``."""
        rejection = self.rejections.get(pod.uid)
        why = None if rejection is None else (rejection.reason, rejection.message)
        if pod.uid in self.waiting:
            why = WAITING_FOR_DEVICES, "the kubelet has not told yet which devices the pod has"
        return explain(self.rules, self.state, pod, why)
