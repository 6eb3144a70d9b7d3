"""The guards of conftest.py hold."""

import socket
from pathlib import Path

import pytest


def test_writing_to_this_machine_fails() -> None:
    with pytest.raises(PermissionError, match="must not write"):
        Path("/sys/fs/cgroup/numalet-test").write_text("x")


def test_calling_an_address_outside_fails() -> None:
    with (
        socket.socket() as outside,
        pytest.raises(PermissionError, match="must not call"),
    ):
        outside.connect(("192.0.2.1", 80))
