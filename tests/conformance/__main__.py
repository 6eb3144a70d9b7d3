"""Replay recorded scenarios, or time our decisions on their pods."""

import argparse
import json
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from tests.conformance.report import Report
from tests.conformance.scenario import Json, read_scenarios
from tests.conformance.timing import checkpoint_folder, times

KEYS = frozenset({"id", "machine", "config", "steps"})
"""What every scenario has, of those parts that are read."""


def main() -> int:
    """Return the exit status: 1 where a scenario failed; what is no input ends with status 2."""
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


def _scenarios(file: Path) -> Iterator[Json]:
    """Yield the scenarios of a file; where it has none of ours, say so and end with status 2."""
    try:
        for scenario in read_scenarios(file):
            yield _checked(scenario)
    except OSError as error:
        _refuse(f"{file} cannot be read: {error.strerror or error}")
    except (ValueError, EOFError, zlib.error) as error:
        _refuse(f"{file} is no file of recorded scenarios: {error}")


def _checked(line: object) -> Json:
    if not isinstance(line, dict) or not line.keys() >= KEYS:
        raise ValueError(f"every line has an object with {', '.join(sorted(KEYS))}")
    return line


def _refuse(sentence: str) -> NoReturn:
    sys.stderr.write(f"conformance: {sentence}\n")
    raise SystemExit(2)


def _replay(files: list[Path]) -> int:
    report = Report()
    for file in files:
        report.run(_scenarios(file))
    sys.stdout.writelines(f"{line}\n" for line in report.lines())
    return 1 if report.failed else 0


def _time(file: Path) -> int:
    with checkpoint_folder() as folder:
        for scenario in _scenarios(file):
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
