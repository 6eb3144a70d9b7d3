"""The entry point: whatever happens becomes a sentence and an exit status.

The commands, and with them most packages, are imported only inside `main`: that takes a quarter of a
second, in which somebody may press Ctrl-C.
"""

import sys
from collections.abc import Callable

from agent.errors import EnvironmentProblem, InvariantBroken, NumaletError
from agent.lean_import import hidden, uncollected

INTERRUPTED = 130
"""128 and the number of SIGINT, as shells tell it."""


def main(run: Callable[[], object] | None = None) -> None:
    """Run ``run``, by default the command that this process was started for; end with its status.

    What is raised on purpose becomes a sentence; a bug of ours is logged with its traceback.
    """
    try:
        (run or _run_command)()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except NumaletError as error:
        if isinstance(error, InvariantBroken):
            _log_traceback(error)
        print(f"numalet: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        print(f"numalet: {error}", file=sys.stderr)
        sys.exit(EnvironmentProblem.exit_status)
    except Exception as error:  # noqa: BLE001 - a bug, of whatever type: it must be told as one
        _log_traceback(error)
        print(
            f"numalet: this is a bug of numalet ({type(error).__name__}): please report it where you"
            " got numalet from, with the traceback above and what `numalet --version` prints",
            file=sys.stderr,
        )
        sys.exit(InvariantBroken.exit_status)


def _run_command() -> None:
    with hidden("rich"):
        import structlog  # noqa: F401, PLC0415 - would import it for tracebacks, 5 MiB with pygments

    with uncollected():
        from agent.commands import cli  # noqa: PLC0415 - inside `main`, see above

    cli(prog_name="numalet")


def _log_traceback(error: BaseException) -> None:
    """Log as the daemon does, or as plain text where no logs are set up."""
    import logging  # noqa: PLC0415 - rarely needed, and a part of that half second

    logging.getLogger("numalet").critical("internal_error", exc_info=error)
