"""Replay recorded scenarios, or time our decisions on their pods."""

import argparse
import json
import sys
from pathlib import Path

from tests.conformance.report import Report
from tests.conformance.scenario import read_scenarios
from tests.conformance.timing import checkpoint_folder, times


def main() -> int:
    """Return the exit status: 1 where a scenario failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help=".jsonl or .jsonl.gz files to replay"
    )
    parser.add_argument(
        "--times",
        type=Path,
        metavar="FILE",
        help="print a JSON line a scenario with the microseconds of every decision instead",
    )
    args = parser.parse_args()
    if bool(args.files) == bool(args.times):
        parser.error("name files to replay, or one file with --times")
    return _time(args.times) if args.times else _replay(args.files)


def _replay(files: list[Path]) -> int:
    report = Report()
    for file in files:
        report.run(read_scenarios(file))
    sys.stdout.writelines(f"{line}\n" for line in report.lines())
    return 1 if report.failed else 0


def _time(file: Path) -> int:
    with checkpoint_folder() as folder:
        for scenario in read_scenarios(file):
            found = times(scenario, folder)
            line = {
                "id": scenario["id"],
                "admitted": found.admitted,
                "us": found.us,
                "us_with_checkpoint": found.us_with_checkpoint,
            }
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
