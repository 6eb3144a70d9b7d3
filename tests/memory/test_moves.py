"""``cpuset.mems`` is written with care: apart, one at a time, and only where the pages fit."""

import errno
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.core.cgroups import CgroupPath
from agent.core.memory_moves import NodeRoom
from agent.errors import CgroupError, EnvironmentProblem
from agent.ports import Gone

from .rig import MIB, NODE_BYTES, PATIENCE_S, A, B, C, Rig, bound

SOON_S = 0.05


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Rig]:
    """A rig whose passes wait a moment only, and on which no move ends by itself."""
    rig = Rig(tmp_path, deadline_s=SOON_S)
    rig.run(A, 100, node=0)
    rig.run(B, 100, node=0)
    rig.kernel.gate.clear()
    yield rig
    rig.kernel.gate.set()


def test_pages_follow_their_cgroup_and_are_counted(rig: Rig) -> None:
    rig.run(A, 100, node=0)
    done = rig.enforce(a=bound("1"))
    assert rig.used_mib(A) == {0: 0, 1: 100}
    assert (done.writes, done.problems, done.in_flight) == ({"cpuset.mems": 1}, (), ())
    assert rig.enforcer.memory().moved_bytes == 100 * MIB
    assert rig.enforce(a=bound("1")).writes == {}


def test_what_moved_and_what_stayed_is_told(rig: Rig) -> None:
    rig.run(A, 100, node=0)
    with capture_logs() as logs:
        rig.enforce(a=bound("1"))
    (line,) = [line for line in logs if line["event"] == "memory_moved"]
    assert (line["cgroup"], line["nodes"], line["log_level"]) == ("/kubepods/a", "1", "info")
    assert (line["moved"], line["left_behind"]) == ("100Mi", "0")


class Optimist:
    """Believes that every node is empty."""

    def read(self) -> Mapping[int, NodeRoom]:
        return {node: NodeRoom(free_bytes=NODE_BYTES) for node in (0, 1)}


def test_what_found_no_room_is_a_warning_and_a_number(tmp_path: Path) -> None:
    rig = Rig(tmp_path, reader=Optimist())
    rig.run(B, 950, node=1)
    rig.run(A, 100, node=0)
    with capture_logs() as logs:
        rig.enforce(a=bound("1"))
    (line,) = [line for line in logs if line["event"] == "memory_moved"]
    assert (line["moved"], line["left_behind"], line["log_level"]) == ("50Mi", "50Mi", "warning")
    rig.enforce(a=bound("1"))
    assert rig.enforcer.memory().left_behind_bytes == 50 * MIB


def test_the_deadline_ends_the_waiting_and_not_the_write(hasty: Rig) -> None:
    done = hasty.enforce(a=bound("1"))
    assert (done.in_flight, done.problems, done.drift) == ((A,), (), ())
    assert list(hasty.enforcer.memory().moves) == [A]
    done = hasty.enforce(a=bound("1"))
    assert (done.in_flight, done.problems, done.drift, done.writes) == ((A,), (), (), {})
    hasty.open_gate()
    done = hasty.enforce(a=bound("1"))
    assert (done.in_flight, done.problems, done.writes) == ((), (), {"cpuset.mems": 1})
    assert hasty.written(A) == ["1"]
    assert hasty.enforcer.memory().moves == {}


def test_a_move_that_was_waited_for_is_not_waited_for_again(hasty: Rig) -> None:
    with capture_logs() as logs:
        hasty.enforce(a=bound("1"))
        hasty.enforce(a=bound("1"), b=bound("1"))
    assert [line["cgroups"] for line in logs if line["event"] == "memory_moves"] == [
        ["/kubepods/a"]
    ]


def test_while_pages_move_other_cgroups_get_their_cpus_at_once(hasty: Rig) -> None:
    hasty.enforce(a=bound("1"))
    done = hasty.enforce(a=bound("1"), b=bound(cpus="1-2"), c=bound(cpus="3"))
    assert str(hasty.kernel.read(B, "cpuset.cpus.effective")) == "1-2"
    assert str(hasty.kernel.read(C, "cpuset.cpus.effective")) == "3"
    assert (done.problems, done.writes, done.in_flight) == (
        (),
        {"cpuset.cpus": 2, "cpuset.mems": 1},  # B is bound to node 0 no longer
        (A,),
    )


def test_moves_that_wait_are_forgotten_when_enforcement_stops(hasty: Rig) -> None:
    hasty.enforce(a=bound("1"), b=bound("1"))

    hasty.mover.forget_waiting()
    hasty.open_gate()

    assert (hasty.written(A), hasty.written(B)) == (["1"], [])


def test_while_pages_move_an_empty_cgroup_is_bound_at_once(hasty: Rig) -> None:
    hasty.enforce(a=bound("1"))
    done = hasty.enforce(a=bound("1"), c=bound("0"))
    assert (hasty.mems(C), done.in_flight, done.problems) == ("0", (A,), ())


def refuse(path: CgroupPath, file: str, value: str) -> Gone | None:
    raise CgroupError(f"{path}/{file}", errno.EACCES, f"write {value!r} to")


def test_while_pages_move_a_write_that_is_refused_is_a_problem_as_ever(
    hasty: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty.enforce(a=bound("1"), b=bound("0"))
    monkeypatch.setattr(hasty.kernel, "write", refuse)
    done = hasty.enforce(a=bound("1"), b=bound("0", cpus="1"), c=bound("0"))
    refused = [problem for problem in done.problems if problem.startswith("cannot write")]
    assert [problem.partition(":")[0] for problem in refused] == [
        "cannot write '1' to /kubepods/b/cpuset.cpus",
        "cannot write '0' to /kubepods/c/cpuset.mems",
    ]


def test_a_write_that_takes_no_effect_in_time_is_a_problem(
    hasty: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty.enforce(a=bound("1"), b=bound("0"))

    def wait(path: CgroupPath, file: str, value: str) -> Gone | None:
        assert hasty.kernel.gate.wait(PATIENCE_S), f"{path}/{file} never got {value}"
        return None

    monkeypatch.setattr(hasty.kernel, "write", wait)
    done = hasty.enforce(a=bound("1"), b=bound("0", cpus="1"))
    assert done.problems[0] == "cannot write '1' to /kubepods/b/cpuset.cpus: ETIME (Timer expired)"
    assert done.memory_problems == set()


@contextmanager
def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As under a limit of tasks."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        yield


def test_where_no_more_writes_may_wait_the_next_one_is_a_problem_and_made_later(
    hasty: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty.enforce(a=bound("1"))
    with no_more_threads(monkeypatch):
        done = hasty.enforce(a=bound("1"), b=bound("0"), c=bound(cpus="3"))
    refused, as_it_is = done.problems
    assert refused.startswith("cannot start a thread to write '3' to /kubepods/c/cpuset.cpus")
    assert "raise pids.max of numalet's own cgroup" in refused
    assert as_it_is == "/kubepods/c/cpuset.cpus says '' instead of '3'"

    hasty.open_gate()
    assert hasty.enforce(a=bound("1"), b=bound("0"), c=bound(cpus="3")).problems == ()
    assert str(hasty.kernel.read(C, "cpuset.cpus")) == "3"


def test_where_no_thread_may_begin_nothing_moves_until_one_may(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.run(A, 100, node=0)
    with no_more_threads(monkeypatch):
        done = rig.enforce(a=bound("1"))
    (problem,) = done.problems
    assert problem.startswith("cannot start a thread to write '1' to /kubepods/a/cpuset.mems")
    assert (done.in_flight, rig.used_mib(A)) == ((), {0: 100, 1: 0})

    assert rig.enforce(a=bound("1")).problems == ()
    assert rig.used_mib(A) == {0: 0, 1: 100}


def test_while_pages_move_one_that_has_little_does_not_wait_for_them(hasty: Rig) -> None:
    hasty.run(C, 2, node=0)
    hasty.enforce(a=bound("1"))
    done = hasty.enforce(a=bound("1"), c=bound("1"))
    assert (hasty.mems(C), hasty.used_mib(C), done.in_flight) == ("1", {0: 0, 1: 2}, (A,))


def test_one_write_at_a_time(hasty: Rig) -> None:
    done = hasty.enforce(a=bound("1"), b=bound("1"))
    assert done.in_flight == (A, B)
    began = hasty.enforcer.memory().moves
    assert (began[A] is None, began[B]) == (False, None)
    hasty.open_gate(moves=2)
    assert hasty.kernel.most_at_once == 1
    assert hasty.enforce(a=bound("1"), b=bound("1")).in_flight == ()
    assert hasty.used_mib(A) == hasty.used_mib(B) == {0: 0, 1: 100}


def test_another_value_for_a_cgroup_in_flight_comes_after_it(hasty: Rig) -> None:
    hasty.enforce(a=bound("1"))
    done = hasty.enforce(a=bound("0"))
    assert (done.in_flight, hasty.mems(A)) == ((A,), "1")
    hasty.open_gate(moves=2)
    assert hasty.written(A) == ["1", "0"]
    assert hasty.used_mib(A) == {0: 100, 1: 0}


def test_a_cgroup_in_flight_is_let_out_after_it_even_where_that_is_quick(hasty: Rig) -> None:
    hasty.enforce(a=bound("1"))
    assert hasty.enforce(a=bound("0-1")).in_flight == (A,)
    hasty.open_gate(moves=2)
    assert hasty.written(A) == ["1", "0-1"]
    assert hasty.enforce(a=bound("0-1")).problems == ()


def test_what_is_not_asked_for_any_more_is_forgotten(hasty: Rig) -> None:
    hasty.enforce(a=bound("1"), b=bound("1"))
    hasty.enforce(a=bound("1"))
    hasty.open_gate()
    assert hasty.enforce(a=bound("1")).in_flight == ()
    assert hasty.written(B) == []


def test_a_change_by_hand_is_drift_once_however_long_its_repair_takes(hasty: Rig) -> None:
    hasty.kernel.gate.set()
    hasty.enforce(a=bound("1"))
    hasty.kernel.foreign_write(A, "cpuset.mems", "0")
    hasty.kernel.gate.clear()
    drift = [hasty.enforce(a=bound("1")).drift for _ in range(3)]
    assert [len(d) for d in drift] == [1, 0, 0]
    hasty.open_gate(moves=2)
    assert hasty.enforce(a=bound("1")).drift == ()


def test_a_container_whose_pod_waits_is_no_problem_either(hasty: Rig) -> None:
    pod, container = CgroupPath("kubepods/pod"), CgroupPath("kubepods/pod/c0")
    hasty.kernel.make(container)
    hasty.run(container, 100)
    hasty.enforce(a=bound("1"))
    values = {A: bound("1"), pod: bound("1"), container: bound("1")}
    done = hasty.enforcer.enforce(values)
    assert hasty.kernel.moving.wait(PATIENCE_S)
    assert (done.problems, set(done.in_flight)) == ((), {A, pod, container})
    hasty.open_gate(moves=2)
    assert hasty.enforcer.enforce(values).problems == ()
    assert hasty.used_mib(pod) == {0: 0, 1: 100}


def test_what_does_not_fit_is_not_written_and_the_problem_has_the_numbers(tmp_path: Path) -> None:
    rig = Rig(tmp_path, margin_mib=50)
    stranger = rig.run(B, 600, node=1)
    rig.run(A, 500, node=0)
    sentence = (
        "/kubepods/a/cpuset.mems is not set to 1: 500Mi would move to NUMA node 1, which has 400Mi"
        " free and 0 in clean pages of files, and keeps 50Mi of that: free memory there; tried"
        " again in every pass"
    )
    done = rig.enforce(a=bound("1"))
    assert (done.problems, done.writes, done.in_flight) == ((sentence,), {}, ())
    assert done.memory_problems == {sentence}, "no reason for not being ready"
    assert (rig.mems(A), rig.used_mib(A)) == ("0", {0: 500, 1: 0})
    rig.run(B, 10, node=1)
    assert rig.enforce(a=bound("1")).problems == (sentence,), "the same problem was told anew"
    rig.kernel.kill(stranger)
    assert rig.enforce(a=bound("1")).problems == ()
    assert rig.used_mib(A) == {0: 0, 1: 500}


def test_what_may_not_grow_to_its_limit_is_not_written_either(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.run(A, 100, node=0)
    rig.kernel.write(A, "memory.max", str(1100 * MIB))
    (problem,) = rig.enforce(a=bound("1")).problems
    assert "up to its memory.max it may ask for 1100Mi more on NUMA nodes 1, which have" in problem
    rig.kernel.write(A, "memory.max", str(900 * MIB))
    assert rig.enforce(a=bound("1")).problems == ()
    assert rig.used_mib(A) == {0: 0, 1: 100}


def test_what_does_not_fit_holds_up_nobody_else(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.run(C, 600, node=1)
    rig.run(A, 500, node=0)
    rig.run(B, 100, node=0)
    done = rig.enforce(a=bound("1"), b=bound("1"))
    assert (len(done.problems), done.writes) == (1, {"cpuset.mems": 1})
    assert rig.used_mib(B) == {0: 0, 1: 100}


class Blind:
    def read(self) -> Mapping[int, NodeRoom]:
        raise EnvironmentProblem("cannot read /sys", cure="mount it")


def test_without_a_look_at_the_nodes_nothing_that_runs_is_moved(tmp_path: Path) -> None:
    rig = Rig(tmp_path, reader=Blind())
    rig.run(A, 100, node=0)
    done = rig.enforce(a=bound("1"), c=bound("1"))
    assert done.problems == ("cannot read /sys; mount it",)
    assert (rig.mems(A), rig.mems(C)) == ("0", "1")


def test_a_write_that_the_kernel_refuses_is_a_problem(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.run(A, 100, node=0)
    monkeypatch.setattr(rig.kernel, "write", refuse)
    done = rig.enforce(a=bound("1"))
    assert done.problems[0].startswith("cannot write '1' to /kubepods/a/cpuset.mems: EACCES")
    assert (len(done.problems), done.in_flight) == (1, ())


def test_a_cgroup_that_vanishes_before_its_move_is_no_problem(hasty: Rig) -> None:
    pid = hasty.run(C, 100, node=0)
    hasty.enforce(a=bound("1"), c=bound("1"))
    hasty.kernel.kill(pid)
    hasty.kernel.remove(C)
    hasty.open_gate()
    done = hasty.enforce(a=bound("1"), c=bound("1"))
    assert (done.problems, done.in_flight) == ((), ())


def test_the_end_of_the_agent_waits_for_no_move_and_nothing_more_begins(tmp_path: Path) -> None:
    rig = Rig(tmp_path, deadline_s=PATIENCE_S)
    rig.run(A, 100, node=0)
    rig.run(B, 100, node=0)
    rig.kernel.gate.clear()
    rig.kernel.on_write = lambda _path, _file, _value: setattr(rig, "is_stopping", True)
    done = rig.enforce(a=bound("1"), b=bound("1"))
    assert done.in_flight == (A, B)
    rig.open_gate()
    assert rig.written(B) == []
