"""Boots a guest, has it run one command, and brings back what came of it."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, Literal

from hack.lab import image, madt
from hack.lab.errors import EmulationError, LabError, TimeoutLabError
from hack.lab.kernel import GUEST_FILES
from hack.lab.topology import GuestTopology

PROJECT = Path(__file__).resolve().parent.parent.parent
BOOT_TIMEOUT_S = 60.0
BOOT_TRIES = 3
"""On a loaded host about one boot in 30 hangs in timer calibration, before its initramfs; a calm one
takes 4 to 11 s (cgroup2-facts section 8).  The command has not run then.  Before that, too, QEMU 7.2 was
once seen to crash on an assertion (msix_table_mmio_write), a kernel 6.12 to panic over an int3, and a boot
to stand still below systemd."""

_FAULTS = ("Oops: int3", "BUG: soft lockup")
"""What a kernel says where most likely the emulation failed it.  Linux changes its own code while other
CPUs run it: emulated ones may still see a breakpoint (int3) there after Linux has forgotten it, which no
real CPU does.  And one CPU of 16 was seen to stand still, which the others then waited for."""

STANDS_STILL_S = 60.0
"""Before Linux 6.8, who meets a breakpoint that has gone tries again, for ever (kprobe_int3_handler)."""

_CONSOLE_TAIL = 3000
_POLL_S = 0.05
_POLL_ALIVE_S = 1.0


@dataclass(frozen=True, slots=True)
class Share:
    """A folder of the host that the guest sees at the same path.

    ``overlay``: the guest may write, and what it wrote is forgotten.  ``disk``: as it was at the boot.
    """

    folder: Path
    mode: Literal["rw", "overlay", "disk"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a guest is for; ``command`` is a shell line, None for an interactive shell.

    ``results`` is a folder of the host that the guest may write to; ``timeout_s`` counts from boot.
    """

    topology: GuestTopology
    command: str | None
    kernel: str = "6.1"
    systemd: bool = False
    results: Path | None = None
    timeout_s: float | None = None
    boot_timeout_s: float = BOOT_TIMEOUT_S
    stdout: BinaryIO = field(default_factory=lambda: sys.stdout.buffer)
    stderr: BinaryIO = field(default_factory=lambda: sys.stderr.buffer)


def run(job: Job) -> int:
    """Boot a guest, run the command in the project's folder, and return its exit status.

    Raises `LabError` where the guest cannot be made, or ends without a status (`EmulationError`
    where that was QEMU's fault), and `TimeoutLabError` where ``timeout_s`` is over.
    """
    images = image.prepare(job.kernel)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_exit_on_sigterm())
        work = Path(stack.enter_context(TemporaryDirectory(prefix="numalet-lab-")))
        shares = _shares(job)
        _write_control(work / "control", job, shares)
        (work / "initrd").write_bytes(madt.as_initrd(job.topology) + images.initrd.read_bytes())
        out, err = (stack.enter_context(_pump(stream)) for stream in (job.stdout, job.stderr))
        command = [*_qemu(job, images, work, shares), *_output_ports(out, err)]
        qemu = _booted(job, command, work, (out, err))
        stack.callback(_end, qemu)
        _wait(qemu, job.timeout_s, work)
        return read_status(work)


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Unwind when told to end, so that no QEMU is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _shares(job: Job) -> list[Share]:
    """Return the project, its virtual environment, and the results."""
    shares = [Share(PROJECT, "overlay")]
    if _venv().is_dir():
        shares.append(Share(_venv(), "disk"))
    if job.results is not None:
        shares.append(Share(job.results.resolve(), "rw"))
    return shares


def _venv() -> Path:
    return (PROJECT / ".venv").resolve()


def _write_control(control: Path, job: Job, shares: list[Share]) -> None:
    """Write what the guest reads while it boots."""
    control.mkdir()
    shutil.copy(GUEST_FILES / "run", control / "run")
    lines = (f"{_tag(i, share)} {share.mode} {share.folder}\n" for i, share in enumerate(shares))
    (control / "shares").write_text("".join(lines))
    setting = [f"cd {shlex.quote(str(PROJECT))}"]
    if _venv().is_dir():
        _check_interpreter()
        setting.append(f"export VIRTUAL_ENV={shlex.quote(str(_venv()))}")
        setting.append('export PATH="$VIRTUAL_ENV/bin:$PATH"')
    command = job.command
    if command is None:
        (control / "interactive").touch()
        size = shutil.get_terminal_size()
        setting.append(f"stty rows {size.lines} cols {size.columns}")
        setting.append(f"export TERM={shlex.quote(os.environ.get('TERM', 'dumb'))}")
        command = "exec bash"
    (control / "command").write_text("\n".join([*setting, command]) + "\n")


def _check_interpreter() -> None:
    """Make sure that the virtual environment's interpreter is one that the guest has, too."""
    interpreter = (_venv() / "bin/python").resolve()
    if interpreter.parent != Path("/usr/bin"):
        raise LabError(
            f"{_venv()} was made by {interpreter}, which guests do not have: remove it and make it"
            " anew with Debian's own Python ('PYTHON=/usr/bin/python3 make lint', say)"
        )


def _qemu(job: Job, images: image.Images, work: Path, shares: list[Share]) -> list[str]:
    """Return QEMU's command line, without the ports for output."""
    console = f"logfile={work}/console.log"
    chardev = f"stdio,signal=off,{console}" if job.command is None else f"null,{console}"
    return [
        "qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi",
        # Only a CPU of Intel's shows the threads of a core under emulation (cgroup2-facts section 8).
        # What the C library does with AVX, it does faster without where that is emulated.  A CPU that
        # is offline waits with mwait, which would be emulated as a busy loop.
        "-cpu", "max,vendor=GenuineIntel,-avx,-avx2,-monitor",
        *job.topology.qemu_arguments(),
        "-nodefaults", "-display", "none", "-no-reboot",
        "-kernel", str(images.kernel), "-initrd", f"{work}/initrd",
        "-append", " ".join(_kernel_arguments(job)),
        "-drive", f"file={_escaped(images.root)},if=none,id=root,format=raw,snapshot=on,cache=unsafe",
        "-device", "virtio-blk-pci,drive=root,romfile=",
        "-chardev", f"{chardev},id=console", "-serial", "chardev:console",
        *_share("control", Share(work / "control", "rw")),
        *(word for i, share in enumerate(shares) for word in _share(_tag(i, share), share)),
    ]  # fmt: skip


def _kernel_arguments(job: Job) -> Iterator[str]:
    yield from ("console=ttyS0", "panic=-1", "quiet", "mitigations=off", "random.trust_cpu=on")
    yield "softlockup_panic=1"
    yield "lpj=10000000"  # as of 2.5 GHz: what emulated CPUs measure of themselves is wrong, and takes long
    yield f"lab.init={'systemd' if job.systemd else 'command'}"
    if job.systemd:
        yield "systemd.unified_cgroup_hierarchy=1"
    yield from job.topology.kernel_arguments()


def _tag(number: int, share: Share) -> str:
    """Return by which name the guest finds a share; the first disk is its root."""
    return "/dev/vdb" if share.mode == "disk" else f"share{number}"


def _share(tag: str, share: Share) -> Iterator[str]:
    if share.mode == "disk":
        file = (
            f"file={_escaped(image.of_folder(share.folder))},if=none,id=disk,format=raw,readonly=on"
        )
        yield from ("-drive", file, "-device", "virtio-blk-pci,drive=disk,romfile=")
        return
    read_only = "" if share.mode == "rw" else ",readonly=on"
    place = f"id={tag},path={_escaped(share.folder)}"
    yield from ("-fsdev", f"local,{place},security_model=none,multidevs=remap{read_only}")
    yield from ("-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}")


def _escaped(path: Path) -> str:
    """Return a path as a value of an option of QEMU's."""
    return str(path).replace(",", ",,")


def _output_ports(out: int, err: int) -> Iterator[str]:
    """Yield two ports of the guest that write to open files of ours."""
    yield from ("-device", "virtio-serial-pci,id=ports")
    for number, (name, descriptor) in enumerate((("out", out), ("err", err)), start=1):
        yield from ("-add-fd", f"fd={descriptor},set={number}")
        yield from ("-chardev", f"file,id={name},path=/dev/fdset/{number},append=on")
        yield from ("-device", f"virtserialport,bus=ports.0,chardev={name},name=lab.{name}")


@contextlib.contextmanager
def _pump(stream: BinaryIO) -> Iterator[int]:
    """Yield an open file; what is written there goes to ``stream``, all of it before the end."""
    reading, writing = os.pipe()

    def copy() -> None:
        while block := os.read(reading, 65_536):
            with contextlib.suppress(BrokenPipeError):  # nobody listens: the guest goes on
                stream.write(block)
                stream.flush()

    thread = threading.Thread(target=copy, name="output")
    thread.start()
    try:
        yield writing
    finally:
        os.close(writing)
        thread.join()
        os.close(reading)


def _booted(
    job: Job, command: list[str], work: Path, files: tuple[int, int]
) -> "subprocess.Popen[bytes]":
    """Start QEMU and wait until the guest is ready to run the command; try again if it hangs."""
    for number in range(1, BOOT_TRIES + 1):
        own_input = None if job.command is None else subprocess.DEVNULL
        qemu = subprocess.Popen(command, stdin=own_input, pass_fds=files)
        try:
            if _watch_boot(qemu, job.boot_timeout_s, work):
                return qemu
        except BaseException:
            _end(qemu)
            raise
        crashed = qemu.returncode is not None
        why = "it crashed" if crashed else f"no guest after {job.boot_timeout_s:g} s"
        _end(qemu)
        print(f"lab: boot {number} failed: {why}", file=sys.stderr, flush=True)
    raise LabError(f"{BOOT_TRIES} boots failed; the console's last words:\n{_console(work)}")


def _watch_boot(qemu: "subprocess.Popen[bytes]", timeout_s: float, work: Path) -> bool:
    """Return True once the guest is ready, False if it is not in time, or it or QEMU crashed."""
    deadline = time.monotonic() + timeout_s
    while not (work / "control/booted").exists():
        ended = qemu.poll()
        if ended is not None and ended > 0:  # it was called wrongly: 0 is a kernel that panicked
            raise LabError(f"QEMU ended while the guest booted:\n{_console(work)}")
        if ended is not None or time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _end(qemu: "subprocess.Popen[bytes]") -> None:
    qemu.kill()
    qemu.wait()


def _wait(qemu: "subprocess.Popen[bytes]", timeout_s: float | None, work: Path) -> None:
    began_s = time.monotonic()
    while qemu.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            qemu.wait(_POLL_ALIVE_S)
        if timeout_s is not None and time.monotonic() - began_s > timeout_s:
            message = f"the command took too long; the console's last words:\n{_console(work)}"
            raise TimeoutLabError(message)
        check_alive(work)


def check_alive(work: Path) -> None:
    """Raise `EmulationError` where the guest, which says every 5 s that it lives, has not for a minute."""
    with contextlib.suppress(FileNotFoundError):
        silent_s = time.time() - (work / "control/alive").stat().st_mtime
        if silent_s > STANDS_STILL_S:
            message = f"the guest stands still; the console's last words:\n{_console(work)}"
            raise EmulationError(message)


def read_status(work: Path) -> int:
    """Return what the guest left in its control folder; raises as `run` does where it left nothing."""
    try:
        return int((work / "control/status").read_text())
    except (FileNotFoundError, ValueError) as error:
        message = f"the guest ended without a status; its last words:\n{_console(work)}"
        said = _console(work, tail=None)
        kind = EmulationError if any(fault in said for fault in _FAULTS) else LabError
        raise kind(message) from error


def _console(work: Path, tail: int | None = _CONSOLE_TAIL) -> str:
    try:
        text = (work / "console.log").read_text(errors="replace")
    except FileNotFoundError:
        return "(none)"
    return text[-tail:] if tail else text
