"""The cache of what guests boot: one folder a kernel, one root image.

What is in the cache stays as it is, older than Debian's newest, until its recipe here changes or
somebody removes it.
"""

import fcntl
import hashlib
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from hack.lab import kernel, packages
from hack.lab.kernel import GUEST_FILES

PACKAGES = (
    "python3", "libnuma1", "numactl", "procps", "util-linux", "iproute2", "busybox-static", "strace",
    "systemd", "systemd-sysv", "dbus", "udev", "kmod", "runc", "crun", "containerd",
    "make",
)  # fmt: skip
"""What the root image holds beside Debian's smallest set."""

_LEFT_OUT = ("man", "doc", "locale", "info")
_MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer",
    "fstrim.timer", "logrotate.timer", "getty.target", "serial-getty@ttyS0.service",
    "systemd-timesyncd.service", "systemd-resolved.service", "systemd-networkd.service",
    "systemd-update-utmp.service", "systemd-hwdb-update.service", "ldconfig.service",
    "systemd-journal-catalog-update.service", "systemd-firstboot.service",
    "systemd-journal-flush.service", "systemd-pcrphase.service", "systemd-pcrphase-sysinit.service",
    "systemd-udev-trigger.service", "systemd-user-sessions.service", "e2scrub_reap.service",
    "modprobe@.service",
)  # fmt: skip
"""Units that cost an emulated CPU time, and that no guest needs."""

_SIZE = "2G"
_BLOCK = 4096
_KEPT_S = 3600
"""For so long a folder's former image is kept: a guest may be about to open it."""
_UNUSED_S = 24 * 3600
"""For so long that of another folder is, since it was used: most clones are made for one run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """What QEMU is given."""

    kernel: Path
    initrd: Path
    root: Path


def cache_folder() -> Path:
    """Return the folder of images: NUMALET_LAB_CACHE, else numalet-lab in the user's cache."""
    own = os.environ.get("NUMALET_LAB_CACHE")
    above = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(above) / "numalet-lab"


def prepare(version: str) -> Images:
    """Return the images for a kernel version, built first where the cache does not have them.

    The emulator is installed, too, where it is not.  Raises `LabError` where something cannot be had.
    """
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    recipe = (GUEST_FILES / "init").read_text() + " ".join(kernel.MODULES)
    boot = folder / f"kernel-{version}-{_digest(recipe)}"
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "bookworm")
    root = folder / f"root-{suite}-{_digest(_customisation() + ' '.join(PACKAGES))}.ext4"
    with _locked(folder / "lock"):  # apt bears nobody beside it, either
        packages.need(packages.EMULATOR)
        _make(boot, lambda: kernel.build(version, boot))
        _make(root, lambda: _build_root(suite, root))
    return Images(kernel=boot / "vmlinux", initrd=boot / "initrd", root=root)


def of_folder(folder: Path) -> Path:
    """Return a read-only image of a folder as it is now, built first where the cache does not have it.

    A program with a thousand modules starts from a disk in half the time that it needs through a share.
    Raises `LabError` where it cannot be built.
    """
    cache = cache_folder()
    files = [(path, path.lstat()) for path in sorted(folder.rglob("*"))]
    listing = "".join(f"{path} {s.st_mtime_ns} {s.st_size}\n" for path, s in files)
    name = f"folder-{_digest(str(folder))}"
    target = cache / f"{name}-{_digest(listing)}.ext4"
    size_mib = sum(s.st_size + _BLOCK for _, s in files) * 5 // 4 // (1 << 20) + 16
    with _locked(cache / "lock"):
        if not target.exists():
            packages.need(packages.BUILDERS)
            for former in cache.glob("folder-*"):
                kept_s = _KEPT_S if former.name.startswith(f"{name}-") else _UNUSED_S
                if former.stat().st_mtime < time.time() - kept_s:
                    former.unlink()
            new = target.with_suffix(".new")
            options = ["-q", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-d"]
            packages.run(["mke2fs", *options, str(folder), str(new), f"{size_mib}M"])
            new.rename(target)
        os.utime(target)
    return target


def _digest(text: str) -> str:
    """Return a name for a recipe, so that a changed one is not taken for the old one."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(target: Path, build: Callable[[], None]) -> None:
    if target.exists():
        return
    rootless = {} if os.geteuid() == 0 else packages.ROOTLESS_BUILDERS
    packages.need({**packages.BUILDERS, **rootless})
    print(f"lab: building {target}", file=sys.stderr, flush=True)
    build()


def _build_root(suite: str, target: Path) -> None:
    """Make an ext4 image that holds a small Debian; each guest writes to a copy that is dropped."""
    options = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
    with TemporaryDirectory(dir=target.parent) as name:
        include = f"--include={','.join(PACKAGES)}"
        debian = ["mmdebstrap", "--variant=minbase", *options, include, suite, "root.tar"]
        packages.run(debian, cwd=name)
        script = (
            f"set -e; mkdir root; tar -C root -xf root.tar\n{_customisation()}"
            f"mke2fs -q -t ext4 -O ^has_journal -m 0 -d root root.ext4 {_SIZE}\n"
        )
        as_root = [] if os.geteuid() == 0 else ["fakeroot"]
        packages.run([*as_root, "sh", "-c", script], cwd=name)
        (Path(name) / "root.ext4").rename(target)


def _customisation() -> str:
    """Return a shell script that makes a guest of the Debian in the folder ``root``."""
    units = "root/etc/systemd/system"
    unit = (GUEST_FILES / "lab.service").read_text()
    lines = [
        f"mkdir -p root/lab/control {units}/multi-user.target.wants",
        f"cat >{units}/lab.service <<'END'\n{unit}END",
        f"ln -s ../lab.service {units}/multi-user.target.wants/lab.service",
        *(f"ln -sf /dev/null {units}/{name}" for name in _MASKED),
        # Not started by itself: a guest that wants it starts it.
        f"rm -f {units}/multi-user.target.wants/containerd.service",
        "echo numalet-guest >root/etc/hostname",
        # One without a name would set itself up at each boot, as at its first.
        "echo 6e756d616c65742d67756573742d3031 >root/etc/machine-id",
        "rm -f root/var/cache/apt/archives/*.deb",
    ]
    return "\n".join(lines) + "\n"
