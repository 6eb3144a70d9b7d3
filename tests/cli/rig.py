"""``numalet`` as a person calls it, in this process."""

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agent.cli import main

PROJECT = Path(__file__).resolve().parents[2]
SAMPLES = PROJECT / "tests/data/samples"
EXAMPLES = PROJECT / "deploy/examples"
MACHINE = EXAMPLES / "machine-2s-16c.yaml"
TINY = PROJECT / "tests/cli/tiny.yaml"
DB = SAMPLES / "latency-critical-db.yaml"


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Cli:
    """Runs commands; whatever happens, they end with a status and without a traceback."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str | Path, stdin: str = "") -> Ended:
        self.monkeypatch.setattr(sys, "argv", ["numalet", *map(str, words)])
        self.monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        self.capsys.readouterr()
        status: object = 0
        try:
            main()
        except SystemExit as end:
            status = end.code
        out, err = self.capsys.readouterr()
        assert isinstance(status, int)
        assert "Traceback" not in out + err
        return Ended(status, out, err)
