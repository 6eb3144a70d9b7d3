"""The Debian packages that the lab needs on the host."""

import os
import shutil
import subprocess

from hack.lab.errors import LabError, UnavailableError

EMULATOR = {"qemu-system-x86_64": "qemu-system-x86"}
BUILDERS = {"mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs", "zstd": "zstd"}
ROOTLESS_BUILDERS = {"fakeroot": "fakeroot", "newuidmap": "uidmap"}
"""Programs, each with the package that has it."""


def need(programs: dict[str, str]) -> None:
    """Make sure that programs are there; as root on Debian, install what is missing.

    Raises `UnavailableError` with the command to run where that is not possible.
    """
    missing = sorted({p for name, p in programs.items() if not shutil.which(name, path=_path())})
    if not missing:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise UnavailableError(
            f"the lab needs the Debian packages {', '.join(missing)}:"
            f" run 'apt-get install {' '.join(missing)}' as root, then this again"
        )
    refresh_lists()
    run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *missing])


def refresh_lists() -> None:
    """Fetch apt's lists of packages anew; does nothing where that needs root."""
    if os.geteuid() == 0:
        run(["apt-get", "update", "-q"])


def _path() -> str:
    """Return where programs are; those of administrators are not in everybody's PATH."""
    return f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


def run(command: list[str], *, cwd: str | None = None, given: bytes | None = None) -> bytes:
    """Run a program and return its output; raises `LabError` with what it complained about."""
    environment = {
        **os.environ,
        "PATH": _path(),
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C.UTF-8",
    }
    try:
        done = subprocess.run(
            command, cwd=cwd, input=given, env=environment, capture_output=True, check=True
        )
    except FileNotFoundError as error:
        raise LabError(f"{command[0]} is not there: the lab works on Debian only") from error
    except subprocess.CalledProcessError as error:
        complaint = error.stderr.decode(errors="replace").strip()[-2000:]
        raise LabError(f"'{' '.join(command[:4])} …' failed:\n{complaint}") from error
    return done.stdout
