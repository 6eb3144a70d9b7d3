import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from agent.logs import configure_logs


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    out, err = capsys.readouterr()
    assert out == ""
    return [json.loads(line) for line in err.splitlines()]


def test_every_line_is_a_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info")
    log = structlog.get_logger(component="test")
    log.info("one", text='quotes " and\nlines', number=1, path=b"bytes")
    log.warning("two")
    one, two = lines(capsys)
    assert one.pop("timestamp").endswith("Z")
    assert one == {
        "component": "test",
        "event": "one",
        "level": "info",
        "number": 1,
        "path": "b'bytes'",
        "text": 'quotes " and\nlines',
    }
    assert (two["event"], two["level"]) == ("two", "warning")


def test_what_libraries_log_looks_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("json", "info")
    logging.getLogger("urllib3.connectionpool").warning("retrying %s", "soon")
    (line,) = lines(capsys)
    assert line.keys() == {"event", "level", "timestamp"}
    assert (line["event"], line["level"]) == ("retrying soon", "warning")


def test_an_exception_stays_on_one_line_with_its_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("json", "info")
    try:
        int("a bug")
    except ValueError as error:
        structlog.get_logger().error("failed", exc_info=error)
        logging.getLogger("lib").exception("failed too")
    for line in lines(capsys):
        assert line["exception"].startswith("Traceback")
        assert line["exception"].endswith("base 10: 'a bug'")


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", ["debug", "info", "warning", "error"]),
        ("info", ["info", "warning", "error"]),
        ("warning", ["warning", "error"]),
        ("error", ["error"]),
    ],
)
def test_levels_below_the_configured_one_are_left_out(
    capsys: pytest.CaptureFixture[str], level: Any, expected: list[str]
) -> None:
    configure_logs("json", level)
    log = structlog.get_logger()
    for name in ("debug", "info", "warning", "error"):
        getattr(log, name)(name)
    assert [line["event"] for line in lines(capsys)] == expected


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_lines_are_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    configure_logs("auto", "info")
    structlog.get_logger().info("hello", who="you")
    logging.getLogger("lib").warning("careful")
    text = terminal.getvalue()
    assert "\x1b[" in text
    assert "hello" in text
    assert "careful" in text
    assert not text.startswith("{")


def test_elsewhere_they_are_json_unless_asked_otherwise(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure_logs("auto", "info")
    structlog.get_logger().info("hello")
    assert lines(capsys)[0]["event"] == "hello"
    configure_logs("console", "info")
    structlog.get_logger().info("hello", who="you")
    err = capsys.readouterr().err
    assert "who=you" in err
    assert "\x1b" not in err


class Full(io.StringIO):
    """A file on a disk without space."""

    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def test_a_log_that_cannot_be_written_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    configure_logs("json", "info")
    log = structlog.get_logger()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("info", "warning", "error", "critical"):
            getattr(log, name)("unheard")
        logging.getLogger("lib").error("unheard")
