"""Nodes that run short of memory are told of; with ``mems: soft`` nobody stays bound to them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from agent.core.cgroups import CgroupPath
from agent.core.memory_moves import NodeRoom
from agent.errors import CgroupError, EnvironmentProblem
from agent.ports import Gone
from agent.simulation.kernel_memory import Memory

from .rig import MIB, NODE_BYTES, A, B, C, Rig, bound

MARGIN_MIB = 100


def limited(folder: Path, limit_mib: int = 400, *, soft: bool = False) -> Rig:
    """A rig on which A may use so much."""
    rig = Rig(folder, margin_mib=MARGIN_MIB, soft=soft)
    rig.kernel.write(A, "memory.max", str(limit_mib * MIB))
    return rig


def events(logs: Iterable[Mapping[str, Any]]) -> list[Any]:
    return [line["event"] for line in logs]


def test_a_shortage_is_told_of_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    rig = limited(tmp_path)
    with capture_logs() as logs:
        done = rig.enforce(a=bound("1"))
        assert (done.problems, rig.enforcer.memory().shortages) == ((), {})
        stranger = rig.run(C, 501)
        rig.kernel.write(C, "cpuset.mems", "1")
        for _ in range(3):
            done = rig.enforce(a=bound("1"))
        ((nodes, sentence),) = rig.enforcer.memory().shortages.items()
        assert nodes == "1"
        assert done.problems == ()
        rig.kernel.kill(stranger)
        rig.enforce(a=bound("1"))
    assert events(logs) == ["memory_short", "memory_short_no_longer"]
    assert logs[0]["what"] == sentence
    assert sentence.startswith("NUMA nodes 1 have 499Mi free or in clean pages of files, and what")
    assert "may ask for 400Mi more, with 100Mi to keep" in sentence
    assert rig.enforcer.memory().shortages == {}


def test_what_is_left_of_nodes_is_a_number(tmp_path: Path) -> None:
    rig = limited(tmp_path)
    rig.enforce(a=bound("1"), b=bound("0"))
    assert rig.enforcer.memory().headroom_bytes == {
        "0": NODE_BYTES,
        "1": NODE_BYTES - 400 * MIB,
    }


def test_memory_that_a_pod_takes_within_its_limit_makes_no_shortage(tmp_path: Path) -> None:
    rig = limited(tmp_path, limit_mib=900)
    rig.enforce(a=bound("1"))
    pid = rig.run(A, 0)
    for mib in (300, 300, 290):
        assert rig.kernel.allocate(pid, mib * MIB)
        rig.enforce(a=bound("1"))
    assert rig.enforcer.memory().shortages == {}


def test_a_look_is_good_for_a_second_unless_somebody_else_is_to_be_bound(tmp_path: Path) -> None:
    rig = limited(tmp_path)
    rig.enforce(a=bound("1"))
    rig.run(C, 600, node=1)
    rig.clock.passes -= 1
    rig.enforce(a=bound("1"))
    assert rig.enforcer.memory().shortages == {}
    rig.clock.passes -= 1
    rig.enforce(a=bound("1"), b=bound("0"))
    assert len(rig.enforcer.memory().shortages) == 1


def test_by_default_who_is_short_stays_bound(tmp_path: Path) -> None:
    rig = limited(tmp_path, limit_mib=950)
    rig.enforce(a=bound("1"))
    assert (rig.mems(A), rig.enforcer.memory().widened) == ("1", ())


def test_with_soft_mems_one_that_may_outgrow_its_node_is_let_out_before_it_does(
    tmp_path: Path,
) -> None:
    rig = limited(tmp_path, limit_mib=700, soft=True)
    rig.enforce(a=bound("1"))
    pid = rig.run(A, 100)
    stranger = rig.run(B, 500, node=1)
    with capture_logs() as logs:
        done = rig.enforce(a=bound("1"))
    assert (rig.mems(A), done.problems, done.drift) == ("0-1", (), ())
    assert events(logs) == ["memory_short", "memory_widened"]
    assert rig.kernel.allocate(pid, 600 * MIB), "killed, though node 0 is empty"
    assert rig.used_mib(A) == {0: 600, 1: 100}
    assert rig.enforcer.memory().widened == (A,)

    rig.kernel.kill(stranger)
    with capture_logs() as logs:
        done = rig.enforce(a=bound("1"))
    assert (rig.mems(A), done.problems, done.drift) == ("1", (), ())
    assert rig.used_mib(A) == {0: 0, 1: 700}
    assert events(logs) == ["memory_short_no_longer", "memory_narrowed", "memory_moved"]


def test_without_soft_mems_it_is_killed(tmp_path: Path) -> None:
    rig = limited(tmp_path, limit_mib=700)
    rig.enforce(a=bound("1"))
    pid = rig.run(A, 100)
    rig.run(B, 500, node=1)
    rig.enforce(a=bound("1"))
    assert not rig.kernel.allocate(pid, 600 * MIB)


def test_one_is_bound_again_only_when_twice_the_margin_is_left(tmp_path: Path) -> None:
    rig = limited(tmp_path, limit_mib=400, soft=True)
    large = rig.run(C, 450, node=1)
    small = rig.run(C, 60, node=1)
    rig.enforce(a=bound("1"))
    assert rig.enforcer.memory().widened == (A,)
    rig.kernel.kill(small)
    rig.enforce(a=bound("1"))
    assert rig.enforcer.memory().widened == (A,), "150Mi are left, which is less than 200Mi"
    rig.kernel.kill(large)
    rig.enforce(a=bound("1"))
    assert (rig.enforcer.memory().widened, rig.mems(A)) == ((), "1")


def test_a_container_is_let_out_together_with_its_pod(tmp_path: Path) -> None:
    rig = Rig(tmp_path, margin_mib=MARGIN_MIB, soft=True)
    pod = CgroupPath("kubepods/pod")
    first, second = pod / "first", pod / "second"
    for path in (first, second):
        rig.kernel.make(path)
    rig.kernel.write(first, "memory.max", str(600 * MIB))
    values = {pod: bound("0-1"), first: bound("0"), second: bound("1")}
    rig.enforcer.enforce(values)
    rig.run(C, 500, node=0)
    rig.clock.passes += 1
    done = rig.enforcer.enforce(values)
    assert rig.enforcer.memory().widened == (pod, first)
    assert [rig.mems(path) for path in (pod, first, second)] == ["0-1", "0-1", "1"]
    assert done.problems == ()


def test_what_cannot_be_read_is_a_problem_and_the_last_look_holds(tmp_path: Path) -> None:
    class Failing:
        def __init__(self) -> None:
            self.memory: Memory | None = None

        def read(self) -> dict[int, NodeRoom]:
            if self.memory is None:
                raise EnvironmentProblem("cannot read /sys")
            return self.memory.read()

    reader = Failing()
    rig = Rig(tmp_path, margin_mib=MARGIN_MIB, soft=True, reader=reader)
    rig.kernel.write(A, "memory.max", str(950 * MIB))
    reader.memory = rig.kernel.memory
    rig.enforce(a=bound("1"))
    assert rig.mems(A) == ""
    reader.memory = None
    done = rig.enforce(a=bound("1"))
    assert (done.problems, rig.enforcer.memory().widened) == (("cannot read /sys",), (A,))


class Mute(Rig):
    """Its kernel does not tell how much is charged."""

    def __post_init__(self) -> None:
        super().__post_init__()
        answer = self.kernel.read

        def read(path: CgroupPath, file: str) -> str | Gone:
            if file == "memory.numa_stat":
                raise CgroupError(f"{path}/{file}", 13, "read")
            return answer(path, file)

        self.kernel.read = read  # type: ignore[method-assign] # of this one kernel


def test_a_cgroup_whose_memory_cannot_be_read_does_not_blind_us_for_others(tmp_path: Path) -> None:
    rig = Mute(tmp_path)
    done = rig.enforce(a=bound("1"), b=bound("0"))
    assert done.problems == ()
    assert rig.enforcer.memory().headroom_bytes == {"0": NODE_BYTES, "1": NODE_BYTES}
