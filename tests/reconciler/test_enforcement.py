"""Values are made so, kept so, and never written without need."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.contests import Contests
from agent.core.cgroups import CgroupPath, CgroupValues, CpuMax
from agent.core.contest import FIRST_PAUSE_S, MOST_REPAIRS
from agent.core.cpuset import CPUSet
from agent.core.pods import Container, Kind
from agent.core.topology import NodeTopology
from agent.enforcer import Enforced, Enforcer
from agent.errors import CgroupError
from agent.observation import parse_cpu_max
from agent.ports import GONE, Gone, PodChanged, PodGone, Tick
from agent.simulation.clock import SimulatedClock
from agent.simulation.kernel import SimulatedKernel
from tests.reconciler.rig import (
    BEST_EFFORT,
    BURSTABLE,
    KUBEPODS,
    Countdown,
    WatchedKernel,
    World,
    exclusive_pod,
    shared_pod,
    two_sockets,
)

A, B = exclusive_pod("a", 2), exclusive_pod("b", 3)
A0, B0 = KUBEPODS / "poda" / "c0", KUBEPODS / "podb" / "c0"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(two_sockets(), tmp_path)


def test_a_value_changed_by_hand_is_drift_and_repaired(world: World) -> None:
    world.listed(A)
    edited = world.kernel.root / A0.relative / "cpuset.cpus"
    edited.write_text("0-15\n")
    with capture_logs() as logs:
        snapshot = world.handle(Tick())
    assert edited.read_text() == "1-2\n"
    assert snapshot.drift == {"foreign_write": 1}
    (line,) = logs
    assert line["what"] == "/kubepods/poda/c0/cpuset.cpus says '0-15' instead of '1-2'"
    assert world.handle(Tick()).drift == {"foreign_write": 1}


def test_a_cgroup_that_vanished_is_made_again(world: World) -> None:
    world.listed(A)
    world.kernel.vanish(A0)
    snapshot = world.handle(Tick())
    assert world.effective(A0) == CPUSet([1, 2])
    assert snapshot.drift == {"recreated": 1}


def test_a_controller_that_somebody_took_away_is_enabled_again(world: World) -> None:
    world.listed(A)
    pod = KUBEPODS / "poda"
    world.kernel.foreign_write(pod, "cgroup.subtree_control", "-cpuset")
    snapshot = world.handle(Tick())
    assert world.text(A0, "cpuset.cpus") == "1-2"
    assert snapshot.problems == ()


def test_a_cpu_that_goes_offline_is_told_once_and_nothing_is_written(world: World) -> None:
    world.listed(A)
    writes = len(world.kernel.writes)
    with capture_logs() as logs:
        world.kernel.set_online(CPUSet(range(16)) - CPUSet([2]))
        snapshot = world.handle(Tick(), Tick(), Tick())
        assert "/kubepods/poda/c0 may use CPUs 1 instead of 1-2" in snapshot.problems
        drift = snapshot.drift
        world.kernel.set_online(CPUSet(range(16)))
        snapshot = world.handle(Tick(), Tick())
    assert (snapshot.problems, snapshot.drift) == ((), drift)
    assert len(world.kernel.writes) == writes
    told = [line["what"] for line in logs if "poda/c0" in line["what"]]
    assert told == ["/kubepods/poda/c0 may use CPUs 1 instead of 1-2"] * 3
    assert [line["event"] for line in logs if "poda/c0" in line["what"]] == [
        "drift",
        "problem",
        "problem_solved",
    ]


def test_a_pod_that_may_use_any_memory_again_is_bound_no_longer(world: World) -> None:
    world.listed(A)
    world.kernel.add_task(A0)
    assert world.text(KUBEPODS / "poda", "cpuset.mems") == "0"
    debug = Container(name="debug", kind=Kind.EPHEMERAL)
    snapshot = world.handle(PodChanged(replace(A, ephemeral_containers=(debug,))), Tick())
    assert world.text(KUBEPODS / "poda", "cpuset.mems") == "0-1"
    assert world.text(A0, "cpuset.mems") == "0"
    assert (snapshot.problems, snapshot.drift) == ((), {})


def test_what_a_hand_left_in_mems_does_not_cut_off_the_pods_below(world: World) -> None:
    world.listed(exclusive_pod("first", 7), A)
    assert world.text(A0, "cpuset.mems") == "1"
    world.kernel.foreign_write(BURSTABLE, "cpuset.mems", "0")
    snapshot = world.handle(Tick())
    assert world.text(BURSTABLE, "cpuset.mems.effective") == "0-1"
    assert snapshot.drift == {"foreign_write": 1}


def test_a_cgroup_that_cannot_be_made_is_a_problem_and_the_others_are_made(world: World) -> None:
    world.listed()
    world.kernel.mkdir(KUBEPODS / "poda")
    world.kernel.add_task(KUBEPODS / "poda")
    snapshot = world.listed(A, B)
    assert world.effective(B0) == CPUSet([3, 4, 5])
    assert any("/poda" in problem and "EBUSY" in problem for problem in snapshot.problems)


class RefusingKernel(WatchedKernel):
    """Refuses to read or to write the cgroup ``broken``."""

    broken: CgroupPath | None = None
    reads_too = False

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        self.refuse(path, "write")
        return super().write(path, file, value)

    def read(self, path: CgroupPath, file: str) -> str | Gone:
        if self.reads_too:
            self.refuse(path, "read")
        return super().read(path, file)

    def refuse(self, path: CgroupPath, action: str) -> None:
        if path == self.broken:
            raise CgroupError(str(path), errno.EACCES, action)


X, Y = CgroupPath("x"), CgroupPath("y")
Z = X / "z"


def values(cpus: str) -> CgroupValues:
    return CgroupValues(cpus=CPUSet.parse(cpus), cpu_max=CpuMax())


@pytest.fixture
def refusing(tmp_path: Path) -> RefusingKernel:
    kernel = RefusingKernel(two_sockets().topology, tmp_path)
    kernel.countdown = Countdown()
    for path in (X, Y):
        kernel.make(path)
    Enforcer(kernel).enforce({X: values("0-3"), Y: values("4-5")})
    kernel.broken = X
    return kernel


def test_nobody_grows_onto_cpus_that_another_could_not_be_made_to_leave(
    refusing: RefusingKernel,
) -> None:
    enforcer = Enforcer(refusing)
    done = enforcer.enforce({X: values("0-1"), Y: values("3-5")})
    assert refusing.read(Y, "cpuset.cpus") == "4-5"
    assert done.problems == (
        "cannot write /x: EACCES (Permission denied); run numalet as root",
        "/y does not get CPUs 3: others use them",
        "/x/cpuset.cpus says '0-3' instead of '0-1'",
        "/y/cpuset.cpus says '4-5' instead of '3-5'",
    )
    refusing.broken = None
    assert enforcer.enforce({X: values("0-1"), Y: values("3-5")}).problems == ()


def test_a_refused_write_holds_up_nobody_else(refusing: RefusingKernel) -> None:
    done = Enforcer(refusing).enforce({X: values("0-1"), Y: values("4-9")})
    assert refusing.read(Y, "cpuset.cpus") == "4-9"
    assert done.writes == {"cpuset.cpus": 1}


def test_a_cgroup_that_cannot_be_read_is_a_problem_and_no_crash(refusing: RefusingKernel) -> None:
    refusing.reads_too = True
    done = Enforcer(refusing).enforce({X: values("0-1"), Y: values("4")})
    assert done.problems == ("cannot read /x: EACCES (Permission denied); run numalet as root",)
    assert refusing.read(Y, "cpuset.cpus") == "4"


class WatchedReads(SimulatedKernel):
    """Remembers which cgroups were looked at."""

    def __init__(self, topology: NodeTopology, root: Path) -> None:
        super().__init__(topology, root)
        self.paths: set[CgroupPath] = set()

    def read(self, path: CgroupPath, file: str) -> str | Gone:
        self.paths.add(path)
        return super().read(path, file)


@pytest.fixture
def kernel(tmp_path: Path) -> SimulatedKernel:
    return SimulatedKernel(two_sockets().topology, tmp_path)


def test_a_young_cgroup_without_cpuset_files_is_waited_for(kernel: SimulatedKernel) -> None:
    kernel.mkdir(X)

    assert Enforcer(kernel).enforce({X: values("0-1")}) == Enforced()
    assert kernel.read(X, "cpuset.cpus") is GONE


def test_where_something_runs_the_controller_is_enabled_again(kernel: SimulatedKernel) -> None:
    kernel.make(Z)
    kernel.add_task(Z)
    enforcer, desired = Enforcer(kernel), {X: values("0-3"), Z: values("0-1")}
    enforcer.enforce(desired)
    kernel.foreign_write(X, "cgroup.subtree_control", "-cpuset")

    done = enforcer.enforce(desired)

    assert done.drift == (
        ("controller_off", f"{Z} has no cpuset files: the controller is off above it"),
    )
    assert not done.problems
    assert kernel.read(Z, "cpuset.cpus") == "0-1"
    assert not enforcer.enforce(desired).drift


def test_a_controller_is_never_enabled_beside_processes(kernel: SimulatedKernel) -> None:
    kernel.mkdir(X)
    kernel.mkdir(Z)
    kernel.add_task(Z)
    kernel.add_task(X)

    (problem,) = Enforcer(kernel).enforce({Z: values("0-1")}).problems

    assert problem.startswith(f"{Z} has no cpuset files")
    assert "EBUSY" in problem


@pytest.mark.parametrize("theirs", ["0-15", "0-7", "2-5", "6-7", "8-12", "1", "7,9"])
def test_what_somebody_keeps_overwriting_is_left_whatever_he_writes(
    kernel: SimulatedKernel, theirs: str
) -> None:
    kernel.make(X)
    enforcer = Enforcer(kernel, contests=Contests(SimulatedClock().monotonic_s))
    repairs = 0
    for _ in range(3 * MOST_REPAIRS):
        repairs += bool(enforcer.enforce({X: values("4-7")}).writes)
        kernel.foreign_write(X, "cpuset.cpus", theirs)
    assert repairs == 1 + MOST_REPAIRS


def test_what_somebody_keeps_overwriting_is_named_and_left_for_a_while(
    kernel: SimulatedKernel,
) -> None:
    kernel.make(X)
    kernel.make(Y)
    clock = SimulatedClock()
    enforcer = Enforcer(kernel, contests=Contests(clock.monotonic_s))

    def writes(y: str) -> int:
        done = enforcer.enforce({X: values("0-1"), Y: values(y)})
        kernel.foreign_write(X, "cpuset.cpus", "0-7")
        return sum(done.writes.values())

    assert sum(writes("4-5") for _ in range(100)) == 1 + MOST_REPAIRS + 1

    done = enforcer.enforce({X: values("0-1"), Y: values("3-5")})
    assert any(p.startswith(f"{X}/cpuset.cpus is left as it is for 10 s") for p in done.problems)
    assert kernel.read(Y, "cpuset.cpus") == "4-5", "nobody grows onto what the other one keeps"

    clock.advance(FIRST_PAUSE_S)
    assert [writes("4-5") for _ in range(3)] == [1, 0, 0]


class Meddled(SimulatedKernel):
    """Somebody writes to Y while the agent writes to X."""

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        if path == X:
            self.foreign_write(Y, file, "7")
        return super().write(path, file, value)


def test_what_somebody_writes_while_something_else_is_repaired_is_counted_too(
    tmp_path: Path,
) -> None:
    kernel = Meddled(two_sockets().topology, tmp_path)
    kernel.make(X)
    kernel.make(Y)
    enforcer, desired = Enforcer(kernel), {X: values("0-1"), Y: values("2-3")}
    while enforcer.enforce(desired).writes:
        pass
    kernel.foreign_write(X, "cpuset.cpus", "5")

    done = enforcer.enforce(desired)
    assert [sentence for _, sentence in done.drift] == [
        f"{X}/cpuset.cpus says '5' instead of '0-1'",
        f"{Y}/cpuset.cpus says '7' instead of '2-3'",
    ]
    assert not enforcer.enforce(desired).drift, "once is enough"
    assert kernel.read(Y, "cpuset.cpus") == "2-3"


def test_only_what_may_have_changed_is_read_again(tmp_path: Path) -> None:
    kernel = WatchedReads(two_sockets().topology, tmp_path)
    for path in (X, Y):
        kernel.make(path)
    enforcer, desired = Enforcer(kernel), {X: values("0-1"), Y: values("2-3")}
    enforcer.enforce(desired)
    kernel.foreign_write(X, "cpuset.cpus", "5")
    kernel.paths.clear()

    enforcer.enforce(desired, look=lambda _path: False)
    assert kernel.paths == set()
    enforcer.enforce({**desired, Y: values("2")}, look=lambda _path: False)
    assert kernel.paths == {Y}
    done = enforcer.enforce({**desired, Y: values("2")}, look=lambda path: path == X)
    assert kernel.paths == {X, Y}
    assert [cause for cause, _ in done.drift] == ["foreign_write"]
    assert kernel.read(X, "cpuset.cpus") == "0-1"


def test_a_pod_that_cannot_be_looked_at_is_kept(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path, kernel_class=RefusingKernel)
    world.listed(A)
    kernel = world.kernel
    assert isinstance(kernel, RefusingKernel)
    kernel.broken, kernel.reads_too = KUBEPODS / "poda", True
    snapshot = world.handle(PodGone(A.uid))
    assert snapshot.state.pods[A.uid].held == CPUSet([1, 2])
    assert any("cannot read /kubepods/poda" in problem for problem in snapshot.problems)
    kernel.broken = None
    assert world.handle(Tick()).state.pods == {}


def test_equal_values_are_never_rewritten(world: World) -> None:
    world.listed(A, shared_pod("s"))
    for path in (A0, BEST_EFFORT / "pods" / "c0"):
        world.kernel.add_task(path)
    writes, unpinned = len(world.kernel.writes), world.kernel.unpinned.copy()
    world.handle(Tick(), PodChanged(A), Tick())
    world.start()
    world.listed(A, shared_pod("s"))
    assert len(world.kernel.writes) == writes
    assert world.kernel.unpinned == unpinned


def test_a_new_pod_unpins_only_who_must_give_up_cpus(world: World) -> None:
    world.listed(A, shared_pod("s"))
    keeps = world.kernel.add_task(A0)
    gives = world.kernel.add_task(BEST_EFFORT / "pods" / "c0")
    before = world.kernel.unpinned.copy()
    world.handle(PodChanged(B))
    assert world.kernel.unpinned[keeps] == before[keeps]
    assert world.kernel.unpinned[gives] == before[gives] + 1


@pytest.mark.parametrize(
    ("text", "value"), [("max 100000", CpuMax()), ("50000 20000", CpuMax(50_000, 20_000))]
)
def test_quotas_are_read_as_the_kernel_writes_them(text: str, value: CpuMax) -> None:
    assert parse_cpu_max(text) == value
    assert str(value) == text
