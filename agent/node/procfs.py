"""What /proc says about this boot, this process and all others (psutil)."""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from agent.core.node_facts import RunningProcess
from agent.errors import EnvironmentProblem

_PF_FORKNOEXEC = 0x40
_RUNC_INIT = re.compile(rb"[^\0]*runc\0init\0")
_COMM = 15
_FLOCK = re.compile(r"^\d+: FLOCK +ADVISORY +WRITE +(\d+) ", re.MULTILINE)


def use_proc_root(root: Path) -> None:
    """Read another proc file system from now on, such as the host's mounted in a container.

    psutil has one such setting for the whole process: it is made once, at start.
    """
    psutil.PROCFS_PATH = str(root)


def boot_id() -> str:
    """Return the kernel's name for this boot: it differs after each reboot."""
    path = Path(psutil.PROCFS_PATH, "sys/kernel/random/boot_id")
    with _explained("sys/kernel/random/boot_id"):
        return path.read_text(encoding="ascii").strip()


def own_rss_bytes() -> int:
    """Return the resident memory of this process in bytes."""
    with _explained("self/statm"):
        return _own_process().memory_info().rss


def own_cpu_s() -> float:
    """Return the CPU time that this process has used, in seconds."""
    with _explained("self/stat"):
        times = _own_process().cpu_times()
        return times.user + times.system


def processes() -> tuple[RunningProcess, ...]:
    """Return what runs, kernel threads included; what ends meanwhile is left out."""
    with _explained(""):
        pids = psutil.pids()
    return tuple(found for pid in pids if (found := _running(pid)) is not None)


def own_pid() -> int | None:
    """Return the number of this process in the proc file system that is read, None if it has none."""
    try:
        return int(Path(psutil.PROCFS_PATH, "self").readlink().name)
    except (OSError, ValueError):
        return None


def processes_named(names: Collection[str]) -> tuple[RunningProcess, ...]:
    """Return those of `processes` that have one of these names, at a tenth of the cost.

    Of all others only the name is read, as long as the kernel has it: 15 bytes (proc_pid_comm(5)).
    """
    short = {name[:_COMM].encode() for name in names}
    with _explained(""):
        pids = psutil.pids()
        proc = os.open(psutil.PROCFS_PATH, os.O_RDONLY | os.O_DIRECTORY)
    try:
        named = [pid for pid in pids if _comm(proc, pid) in short]
    finally:
        os.close(proc)
    return tuple(found for pid in named if (found := _running(pid)) and found.name in names)


def lock_holders() -> frozenset[int] | None:
    """Return who holds a ``flock`` for writing (proc_locks(5)), None where that is not told."""
    try:
        text = Path(psutil.PROCFS_PATH, "locks").read_text(encoding="ascii")
    except (OSError, ValueError):
        return None
    return frozenset(int(pid) for pid in _FLOCK.findall(text))


def has_program(pid: int) -> bool:
    """Tell whether a process has executed a program, and not only been made by a container runtime.

    A process that was forked and has not executed anything has ``PF_FORKNOEXEC``
    (include/linux/sched.h, shown in field 9 of proc_pid_stat(5)); runc executes itself before, as
    ``runc init``.  One that is about to execute has no arguments yet, and one that has gone has none.
    """
    folder = Path(psutil.PROCFS_PATH, str(pid))
    try:
        # Bytes: a process may give itself any name.
        flags = int((folder / "stat").read_bytes().rpartition(b")")[2].split()[9 - 3])
        command = (folder / "cmdline").read_bytes()
    except OSError:
        return False
    return not flags & _PF_FORKNOEXEC and command != b"" and not _RUNC_INIT.match(command)


def _running(pid: int) -> RunningProcess | None:
    try:
        process = psutil.Process(pid)
        return RunningProcess(pid=pid, name=process.name(), arguments=tuple(process.cmdline()))
    except (psutil.Error, OSError):  # gone, a zombie, or on its way
        return None


def _comm(proc: int, pid: int) -> bytes:
    try:
        file = os.open(f"{pid}/comm", os.O_RDONLY, dir_fd=proc)
    except OSError:
        return b""
    try:
        return os.read(file, 64).rstrip(b"\n")
    except OSError:
        return b""
    finally:
        os.close(file)


def _own_process() -> psutil.Process:
    # The proc file system of another PID namespace knows this process by another number.
    return psutil.Process(int(Path(psutil.PROCFS_PATH, "self").readlink().name))


@contextmanager
def _explained(file: str) -> Iterator[None]:
    try:
        yield
    except (OSError, psutil.Error, RuntimeError, LookupError, ValueError) as problem:
        raise EnvironmentProblem(
            f"cannot read {psutil.PROCFS_PATH}/{file}: {problem}; is proc mounted there?"
        ) from problem
