"""A restart of the agent changes nothing, wherever in the day it comes; the kubelet's kills pods."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from agent.core.pods import PodUID
from agent.ports import Tick

from .recording import Line
from .rig import Replay, rules


@pytest.mark.parametrize("run", ["none", "static", "cgroupfs"])
def test_a_restart_at_any_moment_writes_nothing(tmp_path: Path, run: str) -> None:
    replay = Replay(tmp_path, run, rules(tmp_path))
    for _ in replay.moments():
        replay.handle(Tick())
        before = replay.snapshot
        replay.kernel.writes.clear()

        replay.start()

        assert replay.kernel.writes == []
        assert replay.snapshot.state == before.state
        assert replay.snapshot.rejections == before.rejections
        assert replay.snapshot.complaints == before.complaints


@pytest.mark.parametrize(
    ("run", "moments"),
    [
        ("none", 21),
        ("static", 14),
        ("cgroupfs", 3),
    ],
)
def test_a_lost_checkpoint_takes_no_cpu_from_what_runs(
    tmp_path: Path, run: str, moments: int
) -> None:
    replay = Replay(tmp_path, run, rules(tmp_path))
    for _ in islice(replay.moments(), moments):
        before = {path: replay.effective(path) for path in replay.containers()}
        for file in replay.state.glob("*.json"):
            file.unlink()

        replay.start()

        assert {path: replay.effective(path) for path in before} == before


@pytest.mark.parametrize(
    ("before", "after", "mixed"),
    [("01", "02", ["latency-critical-db"]), ("04", "05", ["half", "no-pool-init"])],
)
def test_a_restart_keeps_the_pods_that_mix_exclusive_and_shared_and_the_kubelets_own_kills_them(
    tmp_path: Path, before: str, after: str, mixed: list[str]
) -> None:
    replay = Replay(tmp_path, "static-restart", rules(tmp_path))
    replay.until(before)
    pods = {pod.uid: pod.name for pod in replay.snapshot.pods if pod.budget}
    state = replay.snapshot.state
    replay.kernel.writes.clear()

    replay.start()

    assert replay.kernel.writes == []
    assert replay.snapshot.state == state
    assert sorted(pods.values()) == mixed
    assert pods.keys() <= {uid for line in until(replay, after) for uid in killed(line)}
    assert not pods.keys() & replay.rejected.keys()


def until(replay: Replay, name: str) -> Iterator[Line]:
    """Live on until a moment, and yield every line before it."""
    for line in replay.play():
        if line.get("name") == name:
            return
        yield line


def killed(line: Line) -> Iterator[PodUID]:
    """Yield the pod that the kubelet's own managers have just refused."""
    pod = line["event"]["object"] if line["ev"] == "watch" else {}
    if pod.get("status", {}).get("reason") == "TopologyAffinityError":
        yield PodUID(pod["metadata"]["uid"])
