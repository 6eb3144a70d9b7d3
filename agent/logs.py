"""Logging: structlog events on standard error, as lines for people or JSON for programs."""

import contextlib
import logging
import sys
from typing import Literal

import structlog


class _Lines(structlog.PrintLogger):
    """Prints lines; where that fails (a full disk, a reader that is gone) the agent goes on."""

    def msg(self, message: str) -> None:
        with contextlib.suppress(OSError):
            super().msg(message)

    debug = info = warning = error = critical = exception = msg


def configure_logs(
    log_format: Literal["auto", "console", "json"],
    level: Literal["debug", "info", "warning", "error"],
) -> None:
    """Set up logging once for the process; ``auto`` is console on a terminal, JSON elsewhere.

    What the libraries log through the standard library comes out the same way.
    """
    people = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    render: list[structlog.types.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
        if people
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_args: _Lines(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
