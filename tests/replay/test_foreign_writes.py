"""What a resize, a reload of systemd and a person undo is noticed, and done again."""

from collections import Counter
from pathlib import Path

from agent.core.cgroups import CgroupPath
from agent.giving_back import release
from agent.ports import Tick

from .rig import Replay, rules

CPU_MAX, NO_LIMIT = "cpu.max", "max 100000"
EXCLUSIVE = {("guaranteed", "app"), ("guaranteed", "side"), ("latency-critical-db", "database")}
"""Of the day `none`."""


def lifted(replay: Replay) -> dict[CgroupPath, str]:
    """Return the quotas of the exclusive containers and of their pods: none of them may have one."""
    pods = {pod.uid: pod.name for pod in replay.snapshot.pods}
    own = [
        p for p, (uid, name) in replay.containers().items() if (pods.get(uid), name) in EXCLUSIVE
    ]
    paths = {*own, *(path.parent for path in own)}
    return {path: replay.text(path, CPU_MAX) for path in sorted(paths)}


def test_quotas_that_come_back_are_noticed_and_lifted_again_at_once(tmp_path: Path) -> None:
    replay = Replay(tmp_path, "none", rules(tmp_path))
    back: Counter[str] = Counter()
    drifted = 0
    for line in replay.play():
        rewritten = replay.snapshot.drift.get("quota_rewritten", 0)
        if line["ev"] == "writes":
            assert set(lifted(replay).values()) == {NO_LIMIT}
            back[line["did"]] += rewritten - drifted
        drifted = rewritten
    assert +back == {
        "resize app 2 -> 1 CPU actuated": 2,
        "resize spec.resources cpu 4 -> 5 actuated": 1,
        "systemctl daemon-reload": 5,
    }


def test_under_the_cgroupfs_driver_a_reload_of_systemd_undoes_nothing(tmp_path: Path) -> None:
    replay = Replay(tmp_path, "cgroupfs", rules(tmp_path))
    reloads = [
        set(lifted(replay).values())
        for line in replay.play()
        if line["ev"] == "writes" and "daemon-reload" in line["did"]
    ]
    assert reloads == [{NO_LIMIT}] * 2


def test_quotas_of_containers_that_are_not_exclusive_are_the_kubelets(tmp_path: Path) -> None:
    replay = Replay(tmp_path, "none", rules(tmp_path))
    compared = 0
    for _ in replay.moments():
        replay.handle(Tick())
        for path in replay.containers().keys() - lifted(replay).keys():
            assert replay.text(path, CPU_MAX) == replay.node.said.get((path, CPU_MAX), NO_LIMIT)
            compared += 1
    assert compared == 182


def test_sets_that_somebody_overwrote_are_put_right(tmp_path: Path) -> None:
    """On that day every container was put on CPU 7, and the kubelet never noticed."""
    best_effort = rules(tmp_path, topologyManagerPolicy="best-effort")
    replay = Replay(tmp_path, "static-best-effort", best_effort)
    replay.until("02")
    right = {path: replay.text(path, "cpuset.cpus") for path in replay.containers()}
    moment = next(line for line in replay.lines if line.get("name") == "03")
    for path in right:
        replay.node.write(path, "cpuset.cpus", moment["cgroups"][path.relative]["cpuset.cpus"])
    assert {replay.text(path, "cpuset.cpus") for path in right} == {"7"}

    replay.handle(Tick())

    assert {path: replay.text(path, "cpuset.cpus") for path in right} == right
    assert replay.snapshot.drift == {"foreign_write": len(right)}


def test_at_the_end_of_the_day_the_kubelet_gets_its_last_quotas_back(tmp_path: Path) -> None:
    replay = Replay(tmp_path, "none", rules(tmp_path))
    for _ in replay.play():
        pass
    replay.handle(Tick())
    own = lifted(replay)
    replay.kernel.may_unset = True

    given = release(replay.kernel, replay.journal(), CgroupPath("numalet.slice"))

    assert given.problems == ()
    assert {p: replay.text(p, CPU_MAX) for p in own} == {
        p: replay.node.said[p, CPU_MAX] for p in own
    }
