"""The folder of numalet's own files, and the lock that gives it to one agent at a time."""

import contextlib
import fcntl
import os
import re
import socket
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from agent.errors import EnvironmentProblem, LockedError

LOCK_FILE = "lock"
FOLDER_MODE = 0o700
_FILE_MODE = 0o600
_HOLDER = re.compile(r"\d+( on [\w.-]+)?\n?")


class StopRequest(Protocol):
    """What can end the wait for a lock; a `threading.Event` is one."""

    def wait(self, timeout: float) -> bool:
        """Wait at most ``timeout`` seconds; True once the wait is to end."""
        ...


def make_state_folder(folder: Path) -> None:
    """Create the folder, readable by its owner only; an existing one keeps its mode.

    Raises `EnvironmentProblem` where that is not possible.
    """
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot create the state folder {folder}: {error.strerror}; "
            "name another one in the configuration, or mount a writable volume there"
        ) from error


class StateFolderLock:
    """Keeps every other numalet out of the folder for as long as it is held.

    The lock is a ``flock`` on the file ``lock``: the kernel drops it when the process ends, however
    it ends.  The file itself stays, because removing it would let two agents lock two files of the
    same name.  Who holds it is inside, for people: the pid, and the host, which is a pod's name in
    a container.
    """

    def __init__(self, folder: Path, *, poll_interval_s: float = 0.5) -> None:
        self._path = folder / LOCK_FILE
        self._poll_interval_s = poll_interval_s
        self._fd: int | None = None

    def acquire(self, *, wait_until: StopRequest | None = None) -> bool:
        """Take the lock, making the folder if need be; return whether it was taken.

        Another holder raises `LockedError`, unless ``wait_until`` is given: then wait for it to
        end, and return False if that wait is stopped before.
        """
        make_state_folder(self._path.parent)
        fd = self._open()
        with contextlib.ExitStack() as unless_taken:
            unless_taken.callback(os.close, fd)
            if not self._wait(fd, wait_until):
                return False
            unless_taken.pop_all()
        self._fd = fd
        with contextlib.suppress(OSError):  # a full disk: the lock holds without the pid
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        return True

    def release(self) -> None:
        """Give the lock back; nothing happens where it is not held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _open(self) -> int:
        try:
            return os.open(self._path, os.O_RDWR | os.O_CREAT, _FILE_MODE)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot open {self._path}: {error.strerror}; "
                "the state folder must be writable for numalet"
            ) from error

    def _wait(self, fd: int, wait_until: StopRequest | None) -> bool:
        while not self._try(fd):
            if wait_until is None:
                raise LockedError(self._held_elsewhere())
            if wait_until.wait(self._poll_interval_s):
                return False
        return True

    def _try(self, fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot lock {self._path}: {error.strerror}; "
                "the state folder must be on a local file system"
            ) from error
        return True

    def _held_elsewhere(self) -> str:
        holder = "of unknown number"
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = self._path.read_text(encoding="ascii")
            if _HOLDER.fullmatch(text):
                holder = text.strip()
        return (
            f"the state folder {self._path.parent} is in use by another numalet (process {holder}): "
            "stop that one, or start with --wait-for-lock to go on when it ends"
        )
