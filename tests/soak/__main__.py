"""`hack/soak`: lets pods come and go on a node in a guest, and judges what the agent makes of it."""

# ruff: noqa: T201 - it prints what it found

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import mkdtemp

from hack.lab.errors import LabError
from hack.lab.guest import Job, run
from hack.lab.kernel import KERNELS
from hack.lab.topology import TOPOLOGIES, GuestNode
from tests.sources.api_server import make_certificate

from .node import PODS
from .samples import Sample
from .verdicts import on_costs, on_words, table

GUEST = replace(
    TOPOLOGIES["2n"],
    nodes=tuple(GuestNode(memory_mib=2048, die=(socket, 0)) for socket in range(2)),
)
"""Room for a process in each of 1250 cgroups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One way to run the agent; ``share`` is that of the pods a second that are asked for.

    A folder of manifests is not meant to change as fast as a cluster.
    """

    name: str
    module: str
    most_mib: float
    share: float


MODES = (
    Mode(name="kubernetes", module="tests.soak.node", most_mib=80, share=1),
    Mode(name="single-host", module="tests.soak.folder", most_mib=60, share=0.25),
)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hack/soak",
        description=f"Replace pods on a node with {PODS} of them, and say what the agent costs:"
        " ten minutes for each mode.  Exit status 1: it costs too much, or grows; 125: no guest.",
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=4.0, help="pods a second, if it can be kept")
    parser.add_argument("--mode", choices=[mode.name for mode in MODES], help="only this one")
    parser.add_argument("--kernel", choices=KERNELS, default="6.1")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where all that was told stays")
    return parser.parse_args()


def main() -> int:
    """Run it and return the exit status."""
    given = _arguments()
    results: Path = given.results or Path(mkdtemp(prefix="numalet-soak-"))
    results.mkdir(parents=True, exist_ok=True)
    make_certificate(results)
    seconds = given.minutes * 60
    passed = True
    for mode in MODES:
        if given.mode in (None, mode.name):
            job = Job(
                topology=GUEST,
                command=f"python3 -m {mode.module} {results} {seconds} {given.rate * mode.share}",
                kernel=given.kernel,
                results=results,
                timeout_s=seconds * 2 + 900,
            )
            try:
                status = run(job)
            except LabError as error:
                print(f"hack/soak: {error}", file=sys.stderr)
                return error.exit_status
            passed &= status == 0 and _judge(mode, results / f"{mode.name}.json")
    print(f"{'passed' if passed else 'FAILED'}; all that was told is in {results}")
    return 0 if passed else 1


def _judge(mode: Mode, path: Path) -> bool:
    """Print what was measured in one mode, and tell whether all of it is as it should be."""
    told = json.loads(path.read_text())
    samples = [Sample(**{**one, "series": tuple(one["series"])}) for one in told["samples"]]
    print(f"\n{mode.name}: {PODS} pods of 4 containers\n")
    print("\n".join(table(samples)), end="\n\n")
    verdicts = [
        *on_costs(samples, most_mib=mode.most_mib),
        *on_words(told, pods=PODS + told["replaced"]),
    ]
    for verdict in verdicts:
        print(verdict)
    return all(verdict.passed for verdict in verdicts)


if __name__ == "__main__":
    sys.exit(main())
