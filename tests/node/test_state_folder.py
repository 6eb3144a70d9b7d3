import os
import re
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent.errors import EnvironmentProblem, LockedError
from agent.node.state_folder import LOCK_FILE, StateFolderLock, make_state_folder


class Waiting:
    """A stop request that never stops; the second time that it is waited for, the holder ends."""

    def __init__(self, holder: StateFolderLock) -> None:
        self.holder = holder
        self.times = 0

    def wait(self, timeout: float) -> bool:
        self.times += 1
        if self.times > 1:
            self.holder.release()
        return False


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "lib" / "numalet"


def test_the_folder_is_made_for_its_owner_only(folder: Path) -> None:
    make_state_folder(folder)
    make_state_folder(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_made_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=r"file/state: Not a directory; name another one"):
        make_state_folder(tmp_path / "file" / "state")


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=r"cannot create the state folder .*file"):
        StateFolderLock(tmp_path / "file").acquire()


def test_a_lock_file_that_cannot_be_opened_is_named(folder: Path) -> None:
    (folder / LOCK_FILE).mkdir(parents=True)
    with pytest.raises(EnvironmentProblem, match="lock: Is a directory; the state folder must be"):
        StateFolderLock(folder).acquire()


HOLDER = f"process {os.getpid()} on {re.escape(socket.gethostname())}"


def test_a_second_agent_is_told_who_holds_the_folder_and_what_to_do(folder: Path) -> None:
    with (
        StateFolderLock(folder),
        pytest.raises(LockedError, match=rf"\({HOLDER}\): stop .* --wait-for-lock"),
    ):
        StateFolderLock(folder).acquire()


def test_a_holder_that_has_not_written_its_pid_yet_is_unknown(folder: Path) -> None:
    with StateFolderLock(folder):
        (folder / LOCK_FILE).write_text("")
        with pytest.raises(LockedError, match=r"\(process of unknown number\)"):
            StateFolderLock(folder).acquire()


def test_the_lock_is_free_after_it_was_given_back(folder: Path) -> None:
    with StateFolderLock(folder):
        pass
    with StateFolderLock(folder) as lock:
        lock.release()
        lock.release()
        with StateFolderLock(folder):
            pass


def test_the_pid_of_a_former_holder_is_overwritten(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / LOCK_FILE).write_text("123456789012\n")
    with StateFolderLock(folder):
        assert (folder / LOCK_FILE).read_text() == f"{os.getpid()} on {socket.gethostname()}\n"


def test_a_waiting_agent_goes_on_when_the_holder_ends(folder: Path) -> None:
    first, second = StateFolderLock(folder), StateFolderLock(folder)
    first.acquire()
    waiting = Waiting(first)
    assert second.acquire(wait_until=waiting)
    assert waiting.times == 2
    second.release()


def test_a_waiting_agent_stops_when_asked(folder: Path) -> None:
    stop = threading.Event()
    stop.set()
    with StateFolderLock(folder):
        assert not StateFolderLock(folder).acquire(wait_until=stop)


def test_an_interrupted_wait_leaves_no_file_open(folder: Path) -> None:
    class Interrupted:
        def wait(self, timeout: float) -> bool:
            raise KeyboardInterrupt

    with StateFolderLock(folder):
        before = open_files()
        with pytest.raises(KeyboardInterrupt):
            StateFolderLock(folder).acquire(wait_until=Interrupted())
        assert open_files() == before


def test_the_lock_of_a_process_that_was_killed_is_free(folder: Path) -> None:
    program = (
        "import pathlib, sys; from agent.node.state_folder import StateFolderLock;"
        "StateFolderLock(pathlib.Path(sys.argv[1])).acquire(); print('locked', flush=True);"
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(LockedError, match=rf"process {holder.pid} on "):
            StateFolderLock(folder).acquire()
        holder.kill()
    with StateFolderLock(folder):
        pass
