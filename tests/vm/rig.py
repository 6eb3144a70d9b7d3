"""Runs a command in a guest and brings back what it said and wrote."""

import io
import logging
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

import pytest

from hack.lab.errors import EmulationError, UnavailableError
from hack.lab.guest import Job, run
from hack.lab.topology import GuestTopology

log = logging.getLogger(__name__)

TIMEOUT_S = 600.0
TRIES = 3
AT_ONCE = 2
"""Guests of which none is hurt by a slow one beside it; a third would only wait for CPUs."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    status: int
    stdout: str
    stderr: str

    def succeeded(self) -> "Outcome":
        assert self.status == 0, f"status {self.status}\n{self.stdout}\n{self.stderr}"
        return self


def not_available(reason: UnavailableError) -> NoReturn:
    """Skip a test for which this machine has no guest; CI has one, or fails."""
    if os.environ.get("CI"):
        raise reason
    pytest.skip(str(reason))


def in_guest(
    topology: GuestTopology,
    command: str,
    *,
    kernel: str = "6.1",
    systemd: bool = False,
    results: Path | None = None,
) -> Outcome:
    """Boot, run and end; skips the test where this machine cannot have such a guest.

    Where the emulation fails all is done again, from the beginning.
    """
    given = set() if results is None else set(results.iterdir())
    for _ in range(TRIES - 1):
        try:
            return _once(topology, command, kernel, systemd=systemd, results=results)
        except EmulationError as error:
            log.warning("another try, since %s", error)
            for left in set() if results is None else {*results.iterdir()} - given:
                shutil.rmtree(left) if left.is_dir() else left.unlink()
    return _once(topology, command, kernel, systemd=systemd, results=results)


def _once(
    topology: GuestTopology, command: str, kernel: str, *, systemd: bool, results: Path | None
) -> Outcome:
    stdout, stderr = io.BytesIO(), io.BytesIO()
    job = Job(
        topology=topology,
        command=command,
        kernel=kernel,
        systemd=systemd,
        results=results,
        timeout_s=TIMEOUT_S,
        stdout=stdout,
        stderr=stderr,
    )
    try:
        status = run(job)
    except UnavailableError as reason:
        not_available(reason)
    out, err = (stream.getvalue().decode(errors="replace") for stream in (stdout, stderr))
    return Outcome(status=status, stdout=out, stderr=err)


def side_by_side(
    visit: Callable[[str, Path], T], names: Iterable[str], folders: pytest.TempPathFactory
) -> dict[str, Future[T]]:
    """Visit guests by name, two at a time, and return what came of each, or was raised.

    Each visit gets a folder, made beforehand: two threads must not begin with ``folders`` at once.
    Not for guests in which programs hurry.
    """
    own = {name: folders.mktemp(name) for name in names}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: pool.submit(visit, name, folder) for name, folder in own.items()}
