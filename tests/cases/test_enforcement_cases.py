"""Cases from the field about values in cgroups: what is written, when, in which order, and by whom."""

import errno
import queue
import re
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.config import load
from agent.core.cgroups import CgroupPath, CgroupValues
from agent.core.cpuset import CPUSet
from agent.core.quantity import whole_bytes
from agent.enforcer import Enforcer
from agent.errors import CgroupError
from agent.node import procfs
from agent.node.cgroup_watch import CgroupWatch
from agent.place import other_managers, why_only_observing
from agent.ports import CgroupsChanged, Gone, Tick
from agent.simulation.clock import SimulatedClock
from agent.simulation.kernel import SimulatedKernel
from tests.doctor.made_up import MadeUpNode
from tests.doctor.test_coexistence import STATIC, place_on
from tests.reconciler.rig import WatchedKernel
from tests.strategies import machine

from .answers import answers, compare
from .living import Living, living
from .loader import Case
from .pods import app, pod, rules, sharing

EIGHT = machine(cores_per_node=8, threads=1)
PATIENCE_S = 10.0
P1 = pod(app("a", 2), uid="p1")


@answers("PC-30")
def test_memory_is_not_bound_again_where_it_is_bound(case: Case, tmp_path: Path) -> None:
    """With pages that move: ``tests/vm/test_memory_moves.py``."""
    state = case.raw["state"]
    size = whole_bytes(state["rss"])
    big = machine(sockets=2, cores_per_node=8, threads=1, memory_bytes=2 * size)
    p1 = pod(app("a", 2, gib=size >> 30), uid="p1")
    node = living(rules(big, policy="single-numa-node"), tmp_path, p1)
    bound = {"p1/a": {"cpuset.cpus": state["entries"]["p1"]["a"], "cpuset.mems": "0"}}
    assert node.said(bound) == bound
    assert node.world.kernel.use_memory(node.at["p1/a"], size)
    node.world.kernel.writes.clear()

    passes = re.match(r"(\d+) reconcile passes", case.raw["events"][0])
    assert passes is not None
    node.world.handle(*[Tick()] * int(passes[1]))
    for _ in range(int(passes[1])):
        node.world.handle(Tick())
    node.world.kernel.foreign_write(node.at["p1/a"], "cpuset.mems", "0")
    node.world.handle(CgroupsChanged(node.at["p1/a"]), Tick())

    no_writes = node.writes("cpuset.mems") == 0
    compare(case, properties={"writes(cpuset.mems) == 0": no_writes})
    assert node.world.kernel.writes == []


def reloaded(node: Living, case: Case) -> None:
    """Let systemd write what the entry says."""
    for file, value in re.findall(r"(cpu\S*) to '([^']*)'", case.raw["events"][0]):
        node.world.kernel.foreign_write(node.at["p1/a"], file, value)


@answers("PC-32")
def test_what_a_daemon_reload_sets_back_is_put_right_at_once(case: Case, tmp_path: Path) -> None:
    """By a real systemd: ``tests/vm/test_drift.py``."""
    changed: queue.SimpleQueue[CgroupPath] = queue.SimpleQueue()
    with closing(
        CgroupWatch(tmp_path / "cgroup", on_change=changed.put, on_degraded=pytest.fail)
    ) as watch:
        node = living(rules(EIGHT, reserved="0-1"), tmp_path, P1, watcher=watch)
        before = case.raw["cgroup_before"]
        assert node.said(before) == before
        while not changed.empty():
            changed.get()
        began_s = time.monotonic()
        reloaded(node, case)
        while (path := changed.get(timeout=PATIENCE_S)) != node.at["p1/a"]:
            pass
        snapshot = node.world.handle(CgroupsChanged(path))

    at_once_s = time.monotonic() - began_s
    assert snapshot.drift == {"foreign_write": 1, "quota_rewritten": 1}
    compare(
        case,
        cgroup_after=node.said(before),
        at_most_s=at_once_s + load(None).drift_interval_s,  # where inotify fails
        metrics=[f"drift_total{{cause={c}}} +{n}" for c, n in snapshot.drift.items()],
    )
    assert node.world.handle(Tick()).drift == snapshot.drift


def test_a_reload_that_hits_200_containers_is_put_right_without_a_flood_of_logs(
    tmp_path: Path,
) -> None:
    crowd = [pod(*[sharing(f"c{n}") for n in range(5)], uid=f"crowd{i}") for i in range(40)]
    node = living(rules(EIGHT, reserved="0-1"), tmp_path, P1, *crowd)
    containers = [path for name, path in node.at.items() if "/c" in name]
    assert len(containers) == 200
    for path in containers:
        node.world.kernel.foreign_write(path, "cpuset.cpus", "0-7")
    with capture_logs() as logs:
        snapshot = node.world.handle(Tick())
    assert snapshot.drift == {"foreign_write": len(containers)}
    assert {node.world.cpus(path) for path in containers} == {"0-1,4-7"}
    assert [line["what"] for line in logs][-1] == "and 190 like these"
    assert len(logs) == 11


class BusyKernel(SimulatedKernel):
    """Remembers what every process may run on after each write."""

    def __init__(self, root: Path) -> None:
        super().__init__(EIGHT_AND_MORE, root)
        self.pids: list[int] = []
        self.seen: list[list[CPUSet]] = []
        self.on_write = lambda *_: self.seen.append([self.allowed(pid) for pid in self.pids])


EIGHT_AND_MORE = machine(cores_per_node=16, threads=1)


@answers("PC-33")
def test_a_pod_that_moves_is_never_without_a_cpu(case: Case, tmp_path: Path) -> None:
    kernel = BusyKernel(tmp_path)
    before = {
        CgroupPath(path): CPUSet.parse(files["cpuset.cpus"])
        for path, files in case.raw["cgroup_before"].items()
    }
    for path, cpus in before.items():
        kernel.make(path)
        kernel.foreign_write(path, "cpuset.cpus", str(cpus))
    kernel.seen.clear()
    kernel.pids = [kernel.add_task(path) for path in before if path.depth > 1]
    kernel.writes.clear()
    moves = re.findall(r"(\w+) = ([\d-]+)", case.raw["events"][0])
    wanted = {
        CgroupPath("pod" if name == "pod" else f"pod/{name}"): CPUSet.parse(cpus)
        for name, cpus in moves
    }

    done = Enforcer(kernel).enforce(
        {path: CgroupValues(cpus=cpus) for path, cpus in wanted.items()}
    )

    pod_cpus = [each[CgroupPath("pod")] for each in (before, wanted)]
    compare(
        case,
        write_order=[f"{path.relative} {value}" for path, _, value in kernel.writes],
        properties={
            "no_step_leaves_a_busy_cgroup_empty": len(kernel.seen) == len(kernel.writes)
            and all(
                cpus and any(cpus <= of_pod for of_pod in pod_cpus)
                for seen in kernel.seen
                for cpus in seen
            )
        },
    )
    assert kernel.seen[-1] == [cpus for path, cpus in wanted.items() if path.depth > 1]
    assert done.problems == ()


class FailingKernel(WatchedKernel):
    """A device below fails, for a while."""

    fails = False

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        if self.fails:
            raise CgroupError(f"{path}/{file}", errno.EIO, f"write {value!r} to")
        return super().write(path, file, value)


@answers("PC-37")
def test_what_was_decided_is_compared_with_what_the_file_says(case: Case, tmp_path: Path) -> None:
    node = living(rules(EIGHT), tmp_path, kernel_class=FailingKernel)
    kernel = node.world.kernel
    assert isinstance(kernel, FailingKernel)
    path = node.world.pod(node.world.layout.kubepods() / "podp1")
    a = node.world.container(path, "a")
    kernel.fails = True
    for _ in range(3):
        snapshot = node.world.listed(P1)
        assert any("EIO" in problem for problem in snapshot.problems)
        assert (str(snapshot.state.pods[P1.uid].held), node.world.cpus(a)) == ("1-2", "0-7")

    kernel.fails = False
    snapshot = node.world.handle(Tick())

    compare(
        case,
        properties={
            "cgroup(p1/a) == wanted within one period after the error clears": node.world.cpus(a)
            == "1-2"
        },
    )
    assert snapshot.problems == ()


@answers("PC-38")
def test_no_quota_is_above_an_exclusive_slice_and_each_comes_back(
    case: Case, tmp_path: Path
) -> None:
    """That nothing is throttled: ``tests/vm/test_single_host.py``, with a real quota."""
    before = case.raw["cgroup_before"]
    p1 = pod(app("a", 2), app("b", 0.5), uid="p1")
    node = living(rules(EIGHT), tmp_path, p1, before=before)
    compare(case, cgroup_after=node.said(before))
    world = node.world

    world.kernel.may_unset = True
    policy = replace(world.rules.policy, cpu_policy="none")
    world.rules = replace(world.rules, policy=policy)
    world.start()
    world.listed(p1)

    assert node.said(before) == before


@pytest.fixture
def made_up(tmp_path: Path) -> Iterator[MadeUpNode]:
    node = MadeUpNode((tmp_path / "node").resolve())
    node.build()
    yield node
    procfs.use_proc_root(Path("/proc"))


@answers("PC-39")
def test_another_manager_keeps_us_from_writing_and_a_fight_with_it_is_named(
    case: Case, made_up: MadeUpNode, tmp_path: Path
) -> None:
    """Beside a real kubelet: ``tests/vm/test_strangers.py``."""
    STATIC(made_up)
    config = replace(load(None), host_root=made_up.root)
    found = other_managers(place_on(made_up, rules(EIGHT)), config)
    why = why_only_observing(found, config)
    assert any("kubelet" in sentence for sentence in why)

    clock = SimulatedClock()
    forced = living(rules(EIGHT, reserved="0-1"), tmp_path, P1, clock=clock)
    path = forced.at["p1/a"]
    forced.world.kernel.writes.clear()
    hour_s = 3600
    snapshot = forced.world.snapshots[-1]
    for _ in range(0, hour_s, 10):
        forced.world.kernel.foreign_write(path, "cpuset.cpus", "0-7")
        snapshot = forced.world.handle(CgroupsChanged(path))
        clock.advance(10)
    compare(
        case,
        startup="observe-only" if why else "enforcing",
        properties={
            "writes(p1/a) bounded": 0 < forced.writes("cpuset.cpus", "p1/a") < hour_s / 10 / 8,
            "condition Conflict set": any(
                f"{path}/cpuset.cpus is left as it is" in problem for problem in snapshot.problems
            ),
        },
    )
