"""What the agent's passes cost over the recorded days: ``python -m tests.replay [DAY…]``."""

import logging
import sys
from pathlib import Path
from statistics import mean, median

import structlog

from tests.scratch import scratch_folder

from .recording import RUNS
from .rig import Replay, rules


def main(runs: list[str]) -> None:
    """Print a line for each day."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    for run in runs:
        with scratch_folder() as name:
            replay = Replay(Path(name), run, rules(Path(name)))
            lines = sum(1 for _ in replay.play())
        ms = [1000 * one.seconds for one in replay.passes]
        reads, writes = ([getattr(p, n) for p in replay.passes] for n in ("reads", "writes"))
        print(  # noqa: T201 - this is what it is for
            f"{run}: {lines} lines, {len(ms)} passes; ms: mean {mean(ms):.2f}, median"
            f" {median(ms):.2f}, max {max(ms):.2f}; reads a pass: mean {mean(reads):.0f}, max"
            f" {max(reads)}; writes: {sum(writes)}, a pass: mean {mean(writes):.2f}, max"
            f" {max(writes)}; checkpoints: {replay.snapshot.checkpoints}"
        )


if __name__ == "__main__":
    main(sys.argv[1:] or list(RUNS))
