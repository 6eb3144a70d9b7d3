"""`hack/vm`: a guest for a person."""

import argparse
import shlex
import sys
from pathlib import Path

from hack.lab.errors import LabError
from hack.lab.guest import Job, run
from hack.lab.kernel import KERNELS
from hack.lab.topology import TOPOLOGIES


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="hack/vm",
        description="Run one command in a guest, or a shell without one.  Its exit status is ours;"
        " 124: it took too long; 125: there was no guest to run it in.",
        epilog="The first use of a kernel builds what it needs, which takes a minute or two.",
    )
    parser.add_argument("--topology", choices=TOPOLOGIES, default="2n")
    parser.add_argument("--kernel", choices=KERNELS, default="6.1")
    parser.add_argument("--systemd", action="store_true", help="systemd as process 1")
    parser.add_argument(
        "--results", type=Path, metavar="DIR", help="shared, for the guest to write"
    )
    parser.add_argument("--timeout", type=float, metavar="SECONDS")
    parser.add_argument("command", nargs="*", help="one word is a line for the shell")
    return parser.parse_args()


def main() -> int:
    """Run it and return the exit status."""
    given = _arguments()
    words: list[str] = given.command
    if given.results is not None:
        given.results.mkdir(parents=True, exist_ok=True)
    job = Job(
        topology=TOPOLOGIES[given.topology],
        command=None if not words else words[0] if len(words) == 1 else shlex.join(words),
        kernel=given.kernel,
        systemd=given.systemd,
        results=given.results,
        timeout_s=given.timeout,
    )
    try:
        return run(job)
    except LabError as error:
        print(f"hack/vm: {error}", file=sys.stderr)
        return error.exit_status
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
