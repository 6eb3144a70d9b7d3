"""A recorded day lived through by an agent: what happens, what it notices, and what it makes of it."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import process_time

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet
from agent.core.demand import Demand
from agent.core.isolation import Isolation, isolation
from agent.core.pods import Pod, PodUID, QosClass
from agent.core.startup import Rules
from agent.core.state import PodEntry
from agent.core.topology import NodeTopology
from agent.managed_node import Node
from agent.node.bundles import BundleFolder, Bundles
from agent.node.cgroup_layout import CgroupLayout
from agent.node.checkpoint import CheckpointStore
from agent.node.journal import Journal
from agent.ports import CgroupsChanged, Event, Gone, Rejection, Snapshot, Tick
from agent.reconciler import Reconciler
from agent.sources.known_pods import KnownPods
from agent.sources.pod_model import parse_pod
from agent.whatif import configure
from tests.node.fragile_disks import Clock, UnsyncedDisk
from tests.reconciler.rig import Countdown, WatchedKernel
from tests.strategies import machine

from .node import RecordedNode
from .recording import KUBELET_CONFIG, Line, Names, day, names

DRIFT_INTERVAL_S = 10.0
MEMORY_BYTES = (1_536_831_488, 1_516_150_784)
"""Of each NUMA node, as the recorded memory_manager_state says."""
EVERYWHERE = CgroupPath()


def guest() -> NodeTopology:
    """Return the machine of all recordings: 2 NUMA nodes of 2 cores with 2 threads."""
    topology = machine(sockets=2, cores_per_node=2, threads=2)
    nodes = zip(topology.nodes, MEMORY_BYTES, strict=True)
    return replace(topology, nodes=tuple(replace(n, memory_bytes=size) for n, size in nodes))


def rules(folder: Path, **changes: object) -> Rules:
    """Return the rules of the recorded KubeletConfiguration; ``changes`` are to its keys."""
    path = folder / "kubelet-config.json"
    path.write_text(json.dumps(json.loads(KUBELET_CONFIG.read_text()) | changes))
    return configure(path, guest())[1]


class ReplayKernel(WatchedKernel):
    """Counts what the agent reads."""

    reads = 0

    def read(self, path: CgroupPath, file: str) -> str | Gone:
        self.reads += 1
        return super().read(path, file)


@dataclass
class Inotify:
    """Notices what inotify does: directories that come and go, and watched files that change."""

    kernel: ReplayKernel
    folders: tuple[CgroupPath, ...] = ()
    files: tuple[tuple[CgroupPath, str], ...] = ()
    seen: object = None

    def watch(
        self,
        folders: Iterable[CgroupPath],
        files: Iterable[tuple[CgroupPath, str]] = (),
        *,
        anew: bool = True,
    ) -> None:
        del anew
        before = {*self.folders, *self.files}
        self.folders, self.files = tuple(folders), tuple(files)
        # For something new one change is told, for what happened before.
        self.seen = None if {*self.folders, *self.files} - before else self._look()

    def has_changed(self) -> bool:
        before, self.seen = self.seen, self._look()
        return self.seen != before

    def _look(self) -> object:
        reads = self.kernel.reads
        children = [self.kernel.children(path) for path in self.folders]
        look = children, [self.kernel.read(path, file) for path, file in self.files]
        self.kernel.reads = reads  # inotify(7) reads nothing
        return look


def layout_of(run: str) -> CgroupLayout:
    """Return where the kubelet of a day made its cgroups."""
    return CgroupLayout(driver="cgroupfs" if run == "cgroupfs" else "systemd")


def recorded_node(
    folder: Path, layout: CgroupLayout, known: Names
) -> tuple[ReplayKernel, RecordedNode]:
    """Return a kernel on which a kubelet has just started, and who does there what was done."""
    kernel = ReplayKernel(guest(), folder / "cgroup")
    kernel.countdown = Countdown()
    (folder / "bundles").mkdir()
    node = RecordedNode(kernel, layout.kubepods(), known, folder / "bundles")
    # Under systemd the controllers come with the first pod.
    make = kernel.mkdir if layout.driver == "systemd" else kernel.make
    for qos in (QosClass.BURSTABLE, QosClass.BEST_EFFORT):
        make(layout.qos_parent(qos))
    node.write(layout.kubepods(), "cpuset.cpus", str(guest().cpus))
    return kernel, node


@dataclass(frozen=True)
class Pass:
    """What one pass of the agent cost; the time is that of the processor."""

    seconds: float
    reads: int
    writes: int


@dataclass(frozen=True)
class Container:
    """A container that runs, and what is in force for it."""

    pod: str
    name: str
    cpus: str
    mems: str


@dataclass(frozen=True)
class Moment:
    """What is to be seen when a recorded moment has come; ``parents`` are the cgroups above pods."""

    name: str
    line: Line
    snapshot: Snapshot
    containers: Mapping[CgroupPath, Container]
    parents: Mapping[CgroupPath, str | Gone]


@dataclass
class Replay:
    """A day, the node that it happens to, and the agent of the moment.

    After each pass no process may run on what the agent gave to somebody else.
    """

    folder: Path
    run: str
    rules: Rules
    edit: Callable[[list[Line]], list[Line]] = field(default=lambda lines: lines)
    named: bool = True
    """Whether the runtime's bundles can be read."""

    def __post_init__(self) -> None:
        self.layout = layout_of(self.run)
        self.lines = self.edit(day(self.run))
        self.names = names(self.lines)
        self.kernel, self.node = recorded_node(self.folder, self.layout, self.names)
        self.above_pods = {self.layout.qos_parent(qos) for qos in QosClass}
        self.watcher = Inotify(self.kernel)
        self.state = self.folder / "state"
        self.state.mkdir()
        self.objects: dict[str, Line] = {}
        self.snapshots: list[Snapshot] = []
        self.rejected: dict[PodUID, Rejection] = {}
        self.problems: set[str] = set()
        self.passes: list[Pass] = []
        self.now: float = self.lines[0]["t"]
        self.start()

    def journal(self) -> Journal:
        """Return what was overwritten, as it is on disk."""
        journal = Journal(self.state, boot_id="boot", disk=UnsyncedDisk())
        assert journal.load() == ""
        return journal

    def start(self, rules: Rules | None = None) -> None:
        """Start an agent with what the state folder remembers, and tell it of all pods."""
        self.rules = rules or self.rules
        store = CheckpointStore(self.state, Clock(), disk=UnsyncedDisk())
        bundles = BundleFolder(runtime="containerd", path=self.folder / "bundles")
        node = Node(
            rules=self.rules,
            cgroups=self.kernel,
            layout=self.layout,
            store=store,
            clock=Clock(),
            mode="test",
            cgroup_root=str(self.kernel.root),
            names=Bundles([bundles] if self.named else []),
            watcher=self.watcher,
            journal=self.journal(),
        )
        self.agent = Reconciler(node, store.load().remembered, self.snapshots.append)
        self.events: list[Event] = []
        self.known = KnownPods(self.events.append, parse_pod)
        self.known.all(self.objects.values())
        self.handle()

    def handle(self, *events: Event) -> None:
        """Let the agent handle what its source told and these events, and what it notices then."""
        self._pass(*self.events, *events)
        while self.watcher.has_changed():
            self._pass(CgroupsChanged(EVERYWHERE))

    def _pass(self, *events: Event) -> None:
        reads, writes, begin = self.kernel.reads, len(self.kernel.writes), process_time()
        self.agent.handle(*events)
        self.events.clear()
        seconds = process_time() - begin
        reads, writes = self.kernel.reads - reads, len(self.kernel.writes) - writes
        self.passes.append(Pass(seconds, reads, writes))
        self.rejected |= self.snapshot.rejections
        self.problems.update(self.snapshot.problems)
        self._check_owners()

    @property
    def snapshot(self) -> Snapshot:
        return self.snapshots[-1]

    def moments(self) -> Iterator[Moment]:
        """Live on, and yield each recorded moment when it has come."""
        return (self.look(line) for line in self.play() if line["ev"] == "moment")

    def until(self, name: str) -> None:
        """Live on until a recorded moment."""
        assert any(moment.name == name for moment in self.moments())

    def play(self) -> Iterator[Line]:
        """Live on, and yield each line when the agent has done what follows from it."""
        while self.lines:
            line = self.lines.pop(0)
            self._pass_time(line["t"])
            if line["ev"] == "watch":
                self._tell(line["event"])
            else:
                self.node.play(line)
            if self.events or self.watcher.has_changed():
                self.now = line["t"]
                self.handle(CgroupsChanged(EVERYWHERE))
            yield line

    def _pass_time(self, until: float) -> None:
        """Let the agent look for drift whenever nothing happened for so long."""
        while until - self.now > DRIFT_INTERVAL_S:
            self.now += DRIFT_INTERVAL_S
            self.handle(Tick())

    def look(self, line: Line) -> Moment:
        """Return what is to be seen now."""
        pods = {uid: pod["metadata"]["name"] for uid, pod in self.objects.items()}
        return Moment(
            name=line["name"],
            line=line,
            snapshot=self.snapshot,
            containers={
                path: Container(
                    pod=pods.get(uid, uid),
                    name=name,
                    cpus=str(self.effective(path)),
                    mems=self.text(path, "cpuset.mems.effective"),
                )
                for path, (uid, name) in self.containers().items()
            },
            parents={path: self.kernel.read(path, "cpuset.cpus") for path in self.above_pods},
        )

    def _tell(self, event: Line) -> None:
        pod = event["object"]
        uid = pod["metadata"].get("uid")
        match event["type"]:
            case "ADDED" | "MODIFIED":
                self.objects[uid] = pod
                self.known.changed(pod)
            case "DELETED":
                del self.objects[uid]
                self.known.gone(pod)

    def _check_owners(self) -> None:
        """Fail where a process runs on CPUs of another pod, or of another container of a pool.

        A sandbox runs on the whole pool where nothing of that is shared.
        """
        pods = {pod.uid: pod for pod in self.snapshot.pods}
        running = {path: self.who(path) for path, _ in self.node.processes}
        for path, pid in self.node.processes:
            own, allowed = running[path], self.kernel.allowed(pid)
            for uid, entry in self.snapshot.state.pods.items():
                if uid != own[0]:
                    assert allowed.isdisjoint(entry.held), f"{own} runs on {allowed}"
                for _, name in self._slices(pods[uid], entry) & {*running.values()} - {own}:
                    is_sandbox = own[1] is None
                    assert is_sandbox or allowed.isdisjoint(entry.cpus[name]), f"{own} on {name}'s"

    def _slices(self, pod: Pod, entry: PodEntry) -> set[tuple[PodUID, str]]:
        """Return who of a pod with a pool is exclusive."""
        demand = Demand(self.rules, pod)
        return {
            (pod.uid, c.name)
            for c in (pod.containers if entry.pool is not None else ())
            if isolation(demand, entry, c) is Isolation.EXCLUSIVE
        }

    def who(self, path: CgroupPath) -> tuple[PodUID, str | None]:
        """Return the pod and the name of the container in a cgroup, None for a sandbox."""
        id_ = self.layout.container_id(path)
        assert id_ is not None
        return self.names[id_]

    def containers(self) -> dict[CgroupPath, tuple[PodUID, str]]:
        """Return every container that runs, without sandboxes."""
        here = {path: self.who(path) for path, _ in self.node.processes}
        return {path: (uid, name) for path, (uid, name) in here.items() if name is not None}

    def decided(self, path: CgroupPath) -> CPUSet:
        """Return the CPUs that a container has by the agent's state."""
        uid, name = self.containers()[path]
        entry = self.snapshot.state.pods.get(uid)
        return (entry and entry.cpus.get(name)) or self.snapshot.state.default

    def text(self, path: CgroupPath, file: str) -> str:
        answer = self.kernel.read(path, file)
        assert isinstance(answer, str), f"{path}/{file} is gone"
        return answer

    def effective(self, path: CgroupPath) -> CPUSet:
        return CPUSet.parse(self.text(path, "cpuset.cpus.effective"))
