"""What /proc says about this boot, this process and all others (psutil)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from agent.core.node_facts import RunningProcess
from agent.errors import EnvironmentProblem

_PF_FORKNOEXEC = 0x40


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


def has_program(pid: int) -> bool:
    """Tell whether a process has executed a program, and not only been made by a container runtime.

    A process that was forked and has not executed anything has ``PF_FORKNOEXEC``
    (include/linux/sched.h, shown in field 9 of proc_pid_stat(5)); runc executes itself before, and
    says so in its name.  One that has gone has none.
    """
    try:
        name, _, rest = Path(psutil.PROCFS_PATH, str(pid), "stat").read_text().rpartition(")")
    except OSError:
        return False
    return not int(rest.split()[9 - 3]) & _PF_FORKNOEXEC and "(runc" not in name


def _running(pid: int) -> RunningProcess | None:
    try:
        process = psutil.Process(pid)
        return RunningProcess(pid=pid, name=process.name(), arguments=tuple(process.cmdline()))
    except (psutil.Error, OSError):  # gone, a zombie, or on its way
        return None


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
