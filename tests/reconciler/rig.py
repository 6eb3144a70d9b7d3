"""A node to live on: a simulated kernel, a state folder, and an agent that can be killed."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from agent.core.cgroups import CgroupPath
from agent.core.claims import BUDGET_ANNOTATION
from agent.core.cpuset import CPUSet
from agent.core.entitlement import Entitlement
from agent.core.pods import CPU, MEMORY, Container, Pod, PodUID, Resources
from agent.core.policy import Policy
from agent.core.startup import Rules, start
from agent.core.topology import NodeTopology
from agent.errors import InputError
from agent.hardware import Hardware
from agent.managed_node import Node
from agent.node.cgroup_layout import CgroupLayout
from agent.node.checkpoint import CheckpointStore
from agent.node.durable import Disk
from agent.node.journal import Journal
from agent.ports import (
    GONE,
    CgroupWatcher,
    ContainerNames,
    Event,
    Gone,
    PodsListed,
    Remembered,
    Snapshot,
)
from agent.ports import Clock as AnyClock
from agent.reconciler import Reconciler
from agent.simulation.kernel import SimulatedKernel
from tests.node.fragile_disks import Clock, UnsyncedDisk
from tests.strategies import GI, machine

KUBEPODS = CgroupPath("kubepods")
BURSTABLE = KUBEPODS / "burstable"
BEST_EFFORT = KUBEPODS / "besteffort"


class Killed(BaseException):
    """The agent is killed, at this very instruction."""


@dataclass
class Countdown:
    """Kills at the step with this number; None never does."""

    left: int | None = None

    def step(self) -> None:
        if self.left is None:
            return
        if self.left == 0:
            self.left = None
            raise Killed
        self.left -= 1


class CountedDisk(UnsyncedDisk):
    """Counts its operations down."""

    def __init__(self, countdown: Countdown) -> None:
        self._countdown = countdown

    def write(self, fd: int, data: memoryview) -> int:
        self._countdown.step()
        return super().write(fd, data)

    def fsync(self, fd: int) -> None:
        self._countdown.step()

    def rename(self, source: Path, target: Path) -> None:
        self._countdown.step()
        super().rename(source, target)

    def fsync_folder(self, fd: int) -> None:
        self._countdown.step()


class WatchedKernel(SimulatedKernel):
    """Counts the agent's changes down, and refuses what the agent must never write."""

    countdown: Countdown
    may_unset = False
    """Whether the agent is leaving: it never makes a list empty but to give it back so."""

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        if file != "cgroup.subtree_control":
            assert value.strip() or self.may_unset, f"an empty value for {path}/{file}"
            assert value != self.read(path, file), f"{path}/{file} says {value} already"
        self.countdown.step()
        return super().write(path, file, value)

    def mkdir(self, path: CgroupPath) -> None:
        self.countdown.step()
        super().mkdir(path)

    def remove(self, path: CgroupPath) -> None:
        self.countdown.step()
        super().remove(path)

    def vanish(self, path: CgroupPath) -> None:
        """Somebody else removes a cgroup."""
        super().remove(path)


def equal(cpu_milli: int, gigabytes: int = 1) -> Resources:
    amounts = {CPU: cpu_milli, MEMORY: gigabytes * GI}
    return Resources(requests=amounts, limits=amounts)


def exclusive_pod(name: str, *cpus: int) -> Pod:
    """A pod with one container, ``c0`` and so on, for each number of exclusive CPUs."""
    return Pod(
        uid=PodUID(name),
        name=name,
        app_containers=tuple(
            Container(name=f"c{i}", resources=equal(n * 1000)) for i, n in enumerate(cpus)
        ),
    )


def annotated_pod(name: str, cpus: int) -> Pod:
    """A pod whose budget only numalet knows, so that its cgroup is below ``burstable``.

    ``c0`` is exclusive, and ``side`` has the last CPU.
    """
    return Pod(
        uid=PodUID(name),
        name=name,
        budget=equal(cpus * 1000, 2),
        annotations={BUDGET_ANNOTATION: "{}"},
        app_containers=(
            Container(name="c0", resources=equal(1000 * (cpus - 1))),
            Container(name="side"),
        ),
    )


def shared_pod(name: str) -> Pod:
    """A BestEffort pod with the container ``c0``."""
    return Pod(uid=PodUID(name), name=name, app_containers=(Container(name="c0"),))


def two_sockets() -> Rules:
    """Two NUMA nodes of 8 cores without SMT; CPU 0 is reserved."""
    return start(
        machine(sockets=2, cores_per_node=8, threads=1),
        Policy(
            topology_policy="single-numa-node",
            reserved_cpus=CPUSet([0]),
            node_reservation={CPU: 1000, MEMORY: GI // 2},
            reserved_memory=((0, {MEMORY: GI // 2}),),
        ),
    )


@dataclass
class World:
    """Everything that outlives an agent, and the agent of the moment."""

    rules: Rules
    folder: Path
    countdown: Countdown = field(default_factory=Countdown)
    disk: Disk | None = None
    observe: bool = False
    names: ContainerNames | None = None
    hears_of_devices: bool = False
    machine: NodeTopology | None = None
    """What the machine has come to be; as ``rules`` say unless told otherwise."""
    refuses: str = ""
    """Why the kubelet would not start on the machine as it has come to be."""
    entitlement: Entitlement = field(default_factory=Entitlement)
    stopping: Callable[[], bool] = field(default=lambda: False)
    kernel_class: type[WatchedKernel] = WatchedKernel
    snapshots: list[Snapshot] = field(default_factory=list)
    clock: AnyClock = field(default_factory=Clock)
    watcher: CgroupWatcher | None = None

    def __post_init__(self) -> None:
        self.layout = CgroupLayout(driver="cgroupfs")
        (self.folder / "state").mkdir(exist_ok=True)
        self.boot()
        self.agent = self.start()

    def boot(self) -> None:
        """Start the machine: no cgroup is there yet."""
        self.kernel = self.kernel_class(self.rules.topology, self.folder / "cgroup")
        self.kernel.countdown = self.countdown

    def resolve(self, machine: NodeTopology) -> Rules:
        if self.refuses:
            raise InputError(self.refuses)
        return replace(self.rules, topology=machine)

    def store(self) -> CheckpointStore:
        disk = self.disk or CountedDisk(self.countdown)
        return CheckpointStore(self.folder / "state", Clock(), disk=disk)

    def journal(self) -> Journal:
        """Return what was overwritten, as it is on disk."""
        journal = Journal(self.folder / "state", boot_id="boot", disk=self.disk or UnsyncedDisk())
        assert journal.load() == ""
        return journal

    def remembered(self) -> Remembered | None:
        loaded = self.store().load()
        assert loaded.notes == ()
        return loaded.remembered

    def start(self, kind: type[Reconciler] = Reconciler) -> Reconciler:
        """Start an agent with what the state folder remembers; the one before it is forgotten."""
        store = self.store()
        node = Node(
            rules=self.rules,
            cgroups=self.kernel,
            layout=self.layout,
            store=store,
            clock=self.clock,
            watcher=self.watcher,
            mode="test",
            cgroup_root=str(self.kernel.root),
            observe=self.observe,
            before_pass=self.kernel.absorb,
            names=self.names,
            hears_of_devices=self.hears_of_devices,
            journal=self.journal(),
            entitlement=self.entitlement,
            hardware=Hardware(
                lambda: self.machine or self.rules.topology,
                self.resolve,
                lambda: (self.machine or self.rules.topology).cpus,
            ),
            stopping=self.stopping,
            possible=self.rules.topology.cpus,
        )
        self.agent = kind(node, store.load().remembered, self.snapshots.append)
        return self.agent

    def handle(self, *events: Event) -> Snapshot:
        """Let the agent handle events, and return the last snapshot."""
        for event in events:
            self.agent.handle(event)
        return self.snapshots[-1]

    def listed(self, *pods: Pod) -> Snapshot:
        return self.handle(PodsListed(pods))

    def text(self, path: CgroupPath, file: str) -> str:
        answer = self.kernel.read(path, file)
        assert isinstance(answer, str), f"{path}/{file} is gone"
        return answer

    def effective(self, path: CgroupPath) -> CPUSet:
        return CPUSet.parse(self.text(path, "cpuset.cpus.effective"))

    def exists(self, path: CgroupPath) -> bool:
        return self.kernel.identity(path) is not GONE
