"""Colours are for terminals, every column has a place, and nothing is cut."""

import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agent import tables
from agent.core.cpuset import CPUSet
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


def on_a_terminal_of(columns: int) -> Console:
    return Console(file=io.StringIO(), width=columns, color_system=None)


def printed(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


@given(
    cpus=st.sets(st.integers(0, 4095), min_size=1, max_size=60).map(CPUSet),
    columns=st.integers(20, 140),
)
def test_a_cpu_list_is_wrapped_between_its_ranges_and_never_cut(cpus: CPUSet, columns: int) -> None:
    document = status_document(SNAPSHOT)
    pod = {
        "namespace": "default",
        "name": "a-name-that-is-longer-than-many-a-terminal-is-wide",
        "uid": "u",
        "qosClass": "Guaranteed",
        "admitted": True,
        "reason": "",
        "message": "",
        "cpuPool": str(cpus),
        "numaNodes": "0-1",
        "cpuMax": "max 100000",
        "containers": [],
    }
    document |= {"pods": [pod], "defaultCpuSet": str(cpus)}
    out = on_a_terminal_of(columns)
    tables.print_pods(out, document)
    *table, last = printed(out).splitlines()
    start = table[0].index("CPUS") if columns > 80 else 0
    words = " ".join(line[start:] for line in table).replace(", ", ",").split()
    assert "…" not in printed(out)
    for one in str(cpus).split(","):
        assert any(one in word.split(",") for word in words)
    assert f"default CPU set: {cpus}   reserved" in last


def test_on_a_terminal_of_80_columns_the_readmes_table_fits() -> None:
    out = on_a_terminal_of(80)
    tables.print_pods(out, status_document(SNAPSHOT))
    assert max(map(len, printed(out).splitlines())) <= 80
