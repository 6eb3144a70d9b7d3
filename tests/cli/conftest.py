import logging
import tempfile
from collections.abc import Iterator

import pytest
import structlog

from tests.scratch import PLACE

from .rig import Cli


@pytest.fixture
def numalet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Run commands with their temporary files in memory, and leave logging as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    monkeypatch.setattr(tempfile, "tempdir", PLACE)
    yield Cli(monkeypatch, capsys)
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()
