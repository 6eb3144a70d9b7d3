"""Colours are for terminals, and every column has a place."""

import io
import sys

import pytest

from agent import tables
from agent.report.status import status_document
from tests.cli.test_status import SNAPSHOT


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> str:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", terminal)
    tables.print_status(tables.console(), status_document(SNAPSHOT))
    return terminal.getvalue()


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;32mexclusive" in printed_on_a_terminal(monkeypatch)


def test_a_terminal_that_wants_none_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;32m" not in printed_on_a_terminal(monkeypatch)


def test_columns_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    tables.print_pods(tables.console(), status_document(SNAPSHOT))
    header, *rows = capsys.readouterr().out.splitlines()
    starts = [header.index(title) for title in ("CONTAINER", "VERDICT", "CPUS", "MEMS", "CPU.MAX")]
    for row in rows[: sum(1 + len(v.containers) for v in SNAPSHOT.verdicts)]:
        for start in starts:
            assert row[start - 1] == " "
            assert row[start] != " "
