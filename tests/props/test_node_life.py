"""A node's life: pods come, change and go, hands and kernels interfere, the agent is killed.

The promises are checked after every write that the agent makes, and whenever it has come to rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from agent.core.cgroups import CgroupPath
from agent.core.claims import BUDGET_ANNOTATION
from agent.core.cpuset import CPUSet
from agent.core.explain import PodVerdict
from agent.core.pods import Pod, PodUID
from agent.core.startup import Rules
from agent.core.state import NodeState, PodEntry
from agent.ports import Event, PodChanged, PodGone, PodsListed, Tick
from tests.reconciler.rig import (
    BEST_EFFORT,
    BURSTABLE,
    KUBEPODS,
    Killed,
    World,
    annotated_pod,
    exclusive_pod,
    two_sockets,
)
from tests.scratch import scratch_folder
from tests.strategies import machine, pods, rules


class Life:
    """Leads a world through a history, and watches every write."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.wanted: dict[PodUID, Pod] = {}
        """What the source says."""
        self.programs: dict[int, tuple[PodUID, CgroupPath]] = {}
        self.own: dict[CgroupPath, CPUSet] = {}
        """What containers had of their own when all was last as decided."""
        self.watch()

    def watch(self) -> None:
        self.world.kernel.on_write = lambda *_write: self.check_owners()

    def lead(self, history: list["Step | Kill"]) -> None:
        killed_after = None
        self.world.listed()
        for step in history:
            if isinstance(step, Kill):
                killed_after = step.after
            else:
                self.live(step, killed_after)
                killed_after = None
        self.finish()

    def live(self, step: "Step", killed_after: int | None) -> None:
        """Let one thing happen, and everything that follows from it."""
        kept = self.unaffected_by(step)
        self.world.countdown.left = killed_after
        try:
            self.world.handle(step.happen(self))
        except Killed:
            event("killed")
            self.world.start()
            self.world.listed(*self.wanted.values())
        self.world.countdown.left = None
        state = self.world.snapshots[-1].state
        assert {uid: state.pods.get(uid) for uid in kept} == kept
        self.check_settled()

    def unaffected_by(self, step: "Step") -> dict[PodUID, PodEntry]:
        """Return what those hold whose pods stay as they are."""
        changed = {pod.uid for pod in step.pods()} | self.world.agent._conditions.complaints.keys()
        held = self.world.snapshots[-1].state.pods
        return {uid: held[uid] for uid in held.keys() & self.wanted.keys() - changed}

    def groups(self, path: CgroupPath) -> list[CgroupPath]:
        """Return a cgroup and all below it, those above first."""
        below = (self.groups(child) for child in self.world.kernel.children(path))
        return [path, *(group for groups in below for group in groups)]

    def owners(self) -> Iterator[tuple[PodUID, CgroupPath, CPUSet]]:
        """Yield what each container has of its own, by the state that is enforced."""
        agent = self.world.agent
        for uid, pod in agent._durable.pods.items():
            entry = agent._durable.state.pods.get(uid, PodEntry())
            for leaf, name in agent._tree.of(pod).leaves.items():
                yield uid, leaf, entry.cpus.get(name or "", CPUSet())

    def check_owners(self) -> None:
        """No CPU that a container keeps for itself is one that another pod's program may run on."""
        kernel = self.world.kernel
        now = {leaf: own for _, leaf, own in self.owners()}
        running = [
            # Who is to share from now on gives up what was his own.
            (uid, kernel.allowed(pid), self.own[path] if now.get(path) else CPUSet())
            for pid, (uid, path) in self.programs.items()
            if path in self.own
        ]
        for (one, usable, own), (other, also_usable, _) in permutations(running, 2):
            if one != other:
                shared = own & usable & also_usable
                assert not shared, f"{one} has {own}, {other} uses {also_usable}"

    def check_settled(self) -> None:
        """Everything is as decided, and looking again changes nothing."""
        snapshot = self.world.snapshots[-1]
        assert snapshot.problems == ()
        assert snapshot.ready
        event(f"pods with CPUs of their own: {len(snapshot.state.pods)}")
        event(f"programs: {min(len(self.programs), 3)}")
        for verdict in snapshot.verdicts:
            self.check_pod(verdict, snapshot.state)
        self.own = {leaf: own for _, leaf, own in self.owners()}
        self.check_owners()
        self.check_quiet()

    def check_pod(self, verdict: PodVerdict, state: NodeState) -> None:
        world, entry = self.world, state.pods.get(verdict.pod.uid, PodEntry())
        cgroups = world.agent._tree.of(verdict.pod)
        assert world.text(cgroups.path, "cpu.max") == str(verdict.cpu_max)
        leaves = {name: leaf for leaf, name in cgroups.leaves.items()}
        for c in verdict.containers:
            if c.name in leaves:
                leaf = leaves[c.name]
                assert world.effective(leaf) == entry.cpus.get(c.name, self.shared_cpus(state))
                assert world.text(leaf, "cpu.max") == str(c.cpu_max)
                if c.mems:
                    assert world.text(leaf, "cpuset.mems.effective") == str(c.mems)

    def shared_cpus(self, state: NodeState) -> CPUSet:
        """Return the CPUs of everybody who has none of his own."""
        return state.default or self.world.rules.reserved

    def check_quiet(self) -> None:
        """Another look, and another start with the same pods, change nothing and write nothing."""
        world, kernel = self.world, self.world.kernel
        before = (len(kernel.writes), kernel.unpinned.copy(), world.snapshots[-1].state)
        world.handle(Tick())
        if not (world.agent._departing or world.agent._conditions.complaints):
            world.start()
            world.listed(*self.wanted.values())
        assert (len(kernel.writes), kernel.unpinned, world.snapshots[-1].state) == before

    def finish(self) -> None:
        """Everybody leaves: all CPUs are back, and no cgroup of a pod is left."""
        for pid in list(self.programs):
            self.world.kernel.kill(pid)
        self.programs.clear()
        state, initial = self.world.listed().state, self.world.rules.initial_state()
        assert (state.default, state.pods) == (initial.default, {})
        assert self.world.kernel.children(KUBEPODS) == (BEST_EFFORT, BURSTABLE)
        for parent in (BURSTABLE, BEST_EFFORT):
            assert self.world.kernel.children(parent) == ()
            assert self.world.effective(parent) == self.shared_cpus(state)


class Step(ABC):
    """Something that happens to a node."""

    @abstractmethod
    def happen(self, life: Life) -> Event:
        """Let it happen, and return the event that the agent sees of it."""

    def pods(self) -> tuple[Pod, ...]:
        """Return the pods that become others by it."""
        return ()


@dataclass(frozen=True)
class Want(Step):
    """The source knows this pod: a new one, or a changed one."""

    pod: Pod

    def happen(self, life: Life) -> Event:
        life.wanted[self.pod.uid] = self.pod
        return PodChanged(self.pod)

    def pods(self) -> tuple[Pod, ...]:
        return (self.pod,)


@dataclass(frozen=True)
class Drop(Step):
    """The source no longer knows this pod."""

    uid: PodUID

    def happen(self, life: Life) -> Event:
        life.wanted.pop(self.uid, None)
        return PodGone(self.uid)

    def pods(self) -> tuple[Pod, ...]:
        return (Pod(uid=self.uid),)


@dataclass(frozen=True)
class Relist(Step):
    """The source tells everything again, with some pods changed at once."""

    changed: tuple[Pod, ...]

    def happen(self, life: Life) -> Event:
        life.wanted |= {pod.uid: pod for pod in self.changed}
        return PodsListed(tuple(life.wanted.values()))

    def pods(self) -> tuple[Pod, ...]:
        return self.changed


@dataclass(frozen=True)
class Run(Step):
    """A program starts in a container."""

    position: int

    def happen(self, life: Life) -> Event:
        leaves = sorted((leaf, uid) for uid, leaf, _ in life.owners())
        if leaves:
            leaf, uid = leaves[self.position % len(leaves)]
            life.programs[life.world.kernel.add_task(leaf)] = (uid, leaf)
        return Tick()


@dataclass(frozen=True)
class End(Step):
    """A program ends."""

    position: int

    def happen(self, life: Life) -> Event:
        if life.programs:
            pid = sorted(life.programs)[self.position % len(life.programs)]
            life.world.kernel.kill(pid)
            del life.programs[pid]
        return Tick()


@dataclass(frozen=True)
class Edit(Step):
    """Somebody writes into a file of the mirror."""

    position: int
    file: str
    text: str

    def happen(self, life: Life) -> Event:
        groups = life.groups(KUBEPODS)[1:]
        path = life.world.kernel.root / groups[self.position % len(groups)].relative / self.file
        path.write_text(f"{self.text}\n")
        life.own.clear()  # nobody has anything of his own until the agent has repaired it
        return Tick()


@dataclass(frozen=True)
class Vanish(Step):
    """Somebody removes a cgroup in which nothing runs."""

    position: int

    def happen(self, life: Life) -> Event:
        kernel = life.world.kernel
        idle = [
            group
            for group in life.groups(KUBEPODS)[1:]
            if "populated 0" in str(kernel.read(group, "cgroup.events"))
        ]
        if idle:
            for group in reversed(life.groups(idle[self.position % len(idle)])):
                kernel.vanish(group)
        return Tick()


@dataclass(frozen=True)
class Reboot(Step):
    """The machine starts anew: no cgroup and no program is left."""

    def happen(self, life: Life) -> Event:
        life.world.boot()
        life.watch()
        life.programs.clear()
        life.own.clear()
        life.world.start()
        return PodsListed(tuple(life.wanted.values()))


@dataclass(frozen=True)
class Kill:
    """The agent is killed so many changes into the next step, and started again."""

    after: int


_uids = st.sampled_from(("a", "b", "c", "d"))
_positions = st.integers(0, 7)
_texts = st.sampled_from(("", "0", "0-1", "1-3", "99", "nonsense", "max", "50000 100000"))
_files = st.sampled_from(("cpuset.cpus", "cpuset.mems", "cpu.max"))


@st.composite
def _pods(draw: st.DrawFn) -> Pod:
    """Return pods, some of which carry their budget in an annotation, so in another cgroup."""
    pod = draw(_uids.flatmap(pods))
    if pod.budget is not None and draw(st.booleans()):
        return replace(pod, annotations={BUDGET_ANNOTATION: "{}"})
    return pod


_steps: st.SearchStrategy[Step | Kill] = st.one_of(
    *[st.builds(Want, _pods())] * 5,
    *[st.builds(Run, _positions)] * 4,
    st.builds(End, _positions),
    st.builds(Drop, _uids.map(PodUID)),
    st.builds(Relist, st.lists(_pods(), min_size=1, max_size=3).map(tuple)),
    st.builds(Edit, _positions, _files, _texts),
    st.builds(Vanish, _positions),
    *[st.builds(Kill, st.integers(0, 25))] * 3,
    st.builds(Reboot),
)
_machines = st.builds(
    machine,
    sockets=st.integers(1, 2),
    nodes_per_socket=st.integers(1, 2),
    cores_per_node=st.integers(3, 8),
    threads=st.integers(1, 2),
    siblings_apart=st.booleans(),
)


@st.composite
def _lives(draw: st.DrawFn) -> list[Step | Kill]:
    return [draw(_steps) for _ in range(draw(st.integers(1, 16)))]


@given(rules=rules(_machines), history=_lives())
@example(
    # b moves away as a whole, and a, whose cgroup comes first by name, onto what b had.
    rules=two_sockets(),
    history=[
        Relist((exclusive_pod("f", 5), exclusive_pod("b", 2), exclusive_pod("a", 2))),
        Run(0),
        Run(1),
        Relist((exclusive_pod("b", 6), exclusive_pod("a", 1, 1))),
    ],
)
@example(
    # p moves away from below burstable, and q onto what p had; p must not fall onto what r has.
    rules=two_sockets(),
    history=[
        Relist((exclusive_pod("f", 3), annotated_pod("p", 2), annotated_pod("r", 2))),
        Want(exclusive_pod("q", 2)),
        *[Run(position) for position in range(6)],
        Relist((annotated_pod("p", 6), exclusive_pod("q", 1, 1))),
    ],
)
@settings(max_examples=60, deadline=None)
def test_promises_hold_at_every_write_of_a_nodes_life(
    rules: Rules, history: list[Step | Kill]
) -> None:
    with scratch_folder() as folder:
        Life(World(rules, Path(folder))).lead(history)
