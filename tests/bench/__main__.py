"""Print how long decisions take, as tables in Markdown; nothing here passes or fails."""

import statistics
import sys
from dataclasses import astuple

from tests.bench import big, growth, kubelet
from tests.bench.table import Cell, markdown
from tests.conformance.timing import checkpoint_folder


def main() -> int:
    """Print all tables, each when it is measured."""
    _say("Admit one pod, µs, median of the last five (kubelet: its two state files on tmpfs)\n")
    rejected = _beside_the_kubelet()
    _say(
        f"\nA rejection: median {statistics.median(rejected):.0f} µs, worst {max(rejected):.0f} µs "
        f"of {len(rejected)} (goal: < {kubelet.REJECTION_GOAL_US} µs)",
        "\nMore than 8 NUMA nodes, or sparse ids, where the kubelet does not run (goal: < 20 ms)\n",
    )
    columns = ("machine", "nodes", "policy", "each pod", "pods", "µs", "rejecting one more, µs")
    _say(*markdown(columns, [astuple(row) for row in big.measure()]))
    _say("\nGrowth on one node of 2048 CPUs\n")
    head = ("pods", "µs a decision", "bytes held a pod", "bytes allocated in a decision")
    _say(*markdown(head, [astuple(point) for point in growth.curve()]))
    return 0


def _beside_the_kubelet() -> list[float]:
    """Print the recorded scenarios whose last pods are admitted; return the times of rejections."""
    theirs, rows, rejected = kubelet.kubelet_times(), list[tuple[Cell, ...]](), list[float]()
    with checkpoint_folder() as folder:
        for scenario, found in kubelet.measure(folder):
            rejected += kubelet.rejections(found)
            row = kubelet.row(scenario, found, theirs[scenario])
            if row is not None:
                rows.append(_cells(row))
    head = ("scenario", "kubelet", "numalet", "ratio", "with checkpoint", "ratio", "goal", "met")
    _say(*markdown(head, rows))
    return rejected


def _cells(row: kubelet.Row) -> tuple[Cell, ...]:
    goal = "" if row.goal is None else f"≤ {row.goal:.1f}"
    saved = row.us_with_checkpoint
    ratio, ratio_saved = (f"{us / row.kubelet_us:.2f}" for us in (row.us, saved))
    return row.scenario, row.kubelet_us, row.us, ratio, saved, ratio_saved, goal, row.met


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
