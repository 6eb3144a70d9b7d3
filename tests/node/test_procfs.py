import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agent.errors import EnvironmentProblem
from agent.node import procfs


@pytest.fixture(autouse=True)
def _own_proc() -> Iterator[None]:
    yield
    procfs.use_proc_root(Path("/proc"))


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("7a0c-1\n")
    procfs.use_proc_root(tmp_path)
    return tmp_path


def test_another_proc_file_system_is_read_once_it_is_named(proc: Path) -> None:
    assert procfs.boot_id() == "7a0c-1"


def test_this_process_is_found_by_the_number_that_its_proc_file_system_gives_it(proc: Path) -> None:
    (proc / "self").symlink_to("4242")
    (proc / "4242").mkdir()
    ticks = os.sysconf("SC_CLK_TCK")
    times = f"{3 * ticks} {2 * ticks}"
    (proc / "4242/stat").write_text(
        f"4242 (numalet) S 1 1 1 0 -1 0 0 0 0 0 {times} 0 0 20 0 1 0 100 0 0" + " 0" * 30
    )
    (proc / "4242/statm").write_text("1000 250 30 4 0 50 0\n")

    assert procfs.own_rss_bytes() == 250 * os.sysconf("SC_PAGE_SIZE")
    assert procfs.own_cpu_s() == pytest.approx(5.0)


def test_the_real_proc_knows_this_process() -> None:
    assert procfs.own_rss_bytes() > 1_000_000
    assert 0 < procfs.own_cpu_s() < psutil.cpu_times().user + psutil.cpu_times().system
    assert procfs.boot_id() == procfs.boot_id() != ""


def test_a_missing_proc_file_system_is_named(tmp_path: Path) -> None:
    procfs.use_proc_root(tmp_path)

    for read in (procfs.boot_id, procfs.own_rss_bytes, procfs.own_cpu_s):
        with pytest.raises(EnvironmentProblem, match=f"cannot read {tmp_path}/"):
            read()


@pytest.mark.parametrize(
    ("stat", "command", "runs"),
    [
        ("17 (postgres) S 1 17 17 0 -1 4194560 0", "postgres\0-D\0", True),
        ("17 (runc:[2:INIT]) S 1 17 17 0 -1 1077936128 0", "runc\0init\0", False),
        ("17 (exe) S 1 17 17 0 -1 4194560 0", "/usr/sbin/runc\0init\0", False),
        ("17 (6) R 1 17 17 0 -1 4194560 0", "", False),  # in the middle of execve: no arguments yet
        ("17 (crun) S 1 17 17 0 -1 4194624 0", "crun\0create\0", False),
        ("17 (a ) S (b) R 1 17 17 0 -1 4194560 0", "a\0", True),
        ("17 (\xff) R 1 17 17 0 -1 4194560 0", "\xff\0", True),
        ("17 (init) R 1 17 17 0 -1 4194560 0", "/sbin/init\0", True),
    ],
)
def test_a_program_runs_once_it_is_executed(
    proc: Path, stat: str, command: str, *, runs: bool
) -> None:
    (proc / "17").mkdir()
    (proc / "17/cmdline").write_bytes(command.encode("latin-1"))
    (proc / "17/stat").write_bytes(f"{stat} 0 0 0\n".encode("latin-1"))
    assert procfs.has_program(17) is runs


def test_who_has_gone_runs_no_program(proc: Path) -> None:
    assert not (proc / "17").exists()
    assert not procfs.has_program(17)


def test_this_process_executed_a_program_and_its_fork_has_not() -> None:
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(ours, 1)
        os._exit(0)
    try:
        assert procfs.has_program(os.getpid())
        assert not procfs.has_program(child)
    finally:
        os.write(theirs, b".")
        os.waitpid(child, 0)
        os.close(ours)
        os.close(theirs)
