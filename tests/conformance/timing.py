"""How long our decisions on a scenario's pods take, with and without the checkpoint."""

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from agent.core.admission import Rejected, admit
from agent.core.pods import Pod
from agent.core.startup import Rules, StartupRefused, start
from agent.node.checkpoint import CheckpointStore
from agent.ports import Rejection, Remembered
from agent.simulation.clock import SimulatedClock
from tests.conformance.node import follow
from tests.conformance.scenario import Json, pod, policy, topology

REPEATS = 15
"""A scenario runs so often; what is told of a step is the median."""

_MEMORY_FOLDER = "/dev/shm"


@dataclass(frozen=True, slots=True)
class Times:
    """One entry an ``add`` step: whether the pod was admitted, and microseconds."""

    admitted: list[bool]
    us: list[float]
    us_with_checkpoint: list[float]


def times(scenario: Json, folder: Path, *, repeats: int = REPEATS) -> Times:
    """Return the median times of a scenario's decisions; checkpoints go below ``folder``.

    Nothing is timed where the kubelet's start-up rules refuse the configuration.  Rules are made
    anew for every run, so the first decision includes what later ones find computed.
    """
    try:
        start(topology(scenario["machine"]), policy(scenario["config"]))
    except StartupRefused:
        return Times([], [], [])
    bare = [list(_run(scenario, None)) for _ in range(repeats)]
    saved = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir=folder) as own:
            store = CheckpointStore(Path(own), SimulatedClock())
            store.load()
            saved.append(list(_run(scenario, store)))
    return Times([admitted for admitted, _ in bare[0]], _medians(bare), _medians(saved))


@contextmanager
def checkpoint_folder() -> Iterator[Path]:
    """Yield a new folder on tmpfs; elsewhere, and said on stderr, where there is none."""
    mounts = Path("/proc/self/mounts")
    text = mounts.read_text(encoding="utf-8") if mounts.exists() else ""
    where = _MEMORY_FOLDER if f" {_MEMORY_FOLDER} tmpfs " in text else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        if where is None:
            sys.stderr.write(f"no tmpfs at {_MEMORY_FOLDER}: checkpoints go to {folder}\n")
        yield Path(folder)


def _run(scenario: Json, store: CheckpointStore | None) -> Iterator[tuple[bool, int]]:
    """Yield for every ``add`` whether it was admitted, and nanoseconds; other steps just happen."""
    rules = start(topology(scenario["machine"]), policy(scenario["config"]))
    node = Remembered(state=rules.initial_state())
    for step in scenario["steps"]:
        if step["op"] == "add":
            new = pod(step["pod"])
            began = time.perf_counter_ns()
            node = _decide(rules, node, new)
            if store is not None:
                store.save(node)
            yield new.uid not in node.rejections, time.perf_counter_ns() - began
        elif step["op"] not in ("readmit", "restart"):  # neither changes anything here
            node = replace(node, state=follow(node.state, step, node.pods))


def _decide(rules: Rules, node: Remembered, new: Pod) -> Remembered:
    """Decide on a pod, and remember the verdict as the agent does."""
    decision = admit(rules, node.state, new)
    rejections = node.rejections
    if isinstance(decision, Rejected):
        rejections = {**rejections, new.uid: Rejection(decision.reason, decision.message)}
    return Remembered(state=decision.state, pods={**node.pods, new.uid: new}, rejections=rejections)


def _medians(runs: list[list[tuple[bool, int]]]) -> list[float]:
    steps = zip(*runs, strict=True)
    return [round(statistics.median(ns for _, ns in step) / 1000, 1) for step in steps]
