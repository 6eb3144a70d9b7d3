"""The real cgroup v2 hierarchy, one system call at a time.

A vanished cgroup is `GONE`, whether open, read or write says so with ENOENT or ENODEV
(cgroup2-facts section 4); every other refusal is a `CgroupError`.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from agent.core.cgroups import CONTROLLERS_FILE, CgroupPath
from agent.errors import CgroupError, EnvironmentProblem
from agent.node.mounts import Mount, mount_around, parse_mountinfo
from agent.ports import GONE, Gone

CGROUPS = "sys/fs/cgroup"
"""Where the hierarchy is mounted, below the root of the node."""

CONTROLLERS = ("cpuset", "cpu", "memory")
"""What numalet writes needs these three."""

HUGE_PAGES = "hugetlb"
"""Tells on which nodes a cgroup's huge pages are; not every kernel has it."""

_VANISHED = (errno.ENOENT, errno.ENODEV)
_CONTROLLERS = "cgroup.controllers"
_ONE_READ = 65_536


class CgroupFs:
    """The cgroups below ``root``, a directory of a cgroup2 mount."""

    def __init__(self, root: Path, *, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
        self.root = root
        self._mountinfo = mountinfo

    def check(self) -> None:
        """Make sure that ``root`` is a cgroup v2 hierarchy that can be used, and the whole of it.

        Raises `EnvironmentProblem` with what is wrong and what to do about it: not cgroup v2, or
        only beside v1 (hybrid), mounted read-only, a part only, or without the controllers.
        """
        self.check_mount()
        self.check_whole()
        self.check_controllers()

    def check_mount(self) -> None:
        """Make sure of a writable cgroup2 mount, the first half of `check`."""
        if not self.root.is_dir():
            raise EnvironmentProblem(
                f"{self.root} is not there", cure="mount cgroup2, or name its place"
            )
        check_mounted(self.root.resolve(), self._mountinfo.read_text())

    def check_controllers(self) -> None:
        """Make sure of all `CONTROLLERS`, the other half of `check`."""
        text = self.read(CgroupPath(), _CONTROLLERS)
        missing = [name for name in CONTROLLERS if name not in str(text).split()]
        if missing:
            raise EnvironmentProblem(
                f"{self.root} lacks the controllers {', '.join(missing)}",
                cure=f"enable them in the {CONTROLLERS_FILE} of the cgroup above; at the top, where"
                " cgroup v1 or the kernel command line (cgroup_disable=) holds them back, boot"
                " without that",
            )

    def check_whole(self) -> None:
        """Make sure that this is the host's hierarchy, or one in which a kubelet has its pods (kind).

        Every cgroup but the topmost one has ``cgroup.type``.  Raises `EnvironmentProblem`.
        """
        if not (self.root / "cgroup.type").exists():
            return
        if not any("kube" in path.name for path in self.children(CgroupPath())):
            raise EnvironmentProblem(
                f"{self.root} is a cgroup inside the host's hierarchy, such as a container's own:"
                " whatever runs outside of it cannot be kept off any CPU",
                cure="mount the host's /sys/fs/cgroup and name it with hostRoot, or run numalet in the"
                " host's cgroup namespace",
            )

    def read(self, path: CgroupPath, file: str) -> str | Gone:
        """Return a control file's text without the final newline.

        Raises `CgroupError`.
        """
        target = self._place(path, file)
        try:
            return _content(target).decode().removesuffix("\n")
        except OSError as error:
            return _gone(error, target, "read")

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        """Give a control file a new value in one system call, without truncation before it.

        Python's buffered files report an error at flush and again at close, and truncation is
        a second event for whoever watches (section 1).  Raises `CgroupError`.
        """
        target, action = self._place(path, file), f"write {value!r} to"
        try:
            descriptor = os.open(target, os.O_WRONLY)
        except OSError as error:
            return _gone(error, target, action)
        try:
            os.write(descriptor, value.encode())
        except OSError as error:
            if file == CONTROLLERS_FILE and error.errno == errno.ENOENT:
                # The file was opened: it is the controller that the cgroup above does not have.
                raise CgroupError(target, errno.ENOENT, action) from error
            return _gone(error, target, action)
        finally:
            os.close(descriptor)
        return None

    def children(self, path: CgroupPath) -> tuple[CgroupPath, ...]:
        """Return the cgroups directly below, sorted; none where ``path`` has vanished.

        Raises `CgroupError`.
        """
        target = self._place(path)
        try:
            with os.scandir(target) as entries:
                names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            _gone(error, target, "list")
            return ()
        return tuple(sorted(path / name for name in names))

    def identity(self, path: CgroupPath) -> int | Gone:
        """Return the inode number: a re-created directory is another cgroup.

        Raises `CgroupError`.
        """
        target = self._place(path)
        try:
            return os.stat(target).st_ino  # noqa: PTH116 - see `_place`
        except OSError as error:
            return _gone(error, target, "look at")

    def make(self, path: CgroupPath) -> None:
        """Create a cgroup (and those above it), with cpuset, cpu and memory enabled for it.

        So is hugetlb where it is offered, for huge pages.  Controllers are enabled from the top
        down.  Raises `CgroupError`, with EBUSY where a cgroup above has processes: it is one write
        with memory in it, which the kernel then refuses as a whole, while cpuset alone would turn
        the children into ``domain invalid`` (section 4).
        """
        names = path.relative.split("/")
        for depth in range(len(names)):
            above = CgroupPath("/".join(names[:depth]))
            self._mkdir(above)
            if not self._enable_all(above):
                raise CgroupError(self._place(above), errno.ENOENT, "enable controllers in")
        self._mkdir(path)

    def enable(self, path: CgroupPath) -> None:
        """Enable what `make` does for an existing cgroup, from the top down.

        Nothing happens where one above it has vanished.  Raises `CgroupError`, with EBUSY as `make`.
        """
        for above in reversed([*path.ancestors, CgroupPath()]):
            if not self._enable_all(above):
                return

    def remove(self, path: CgroupPath) -> None:
        """Remove an empty cgroup; nothing happens where it has vanished.

        Raises `CgroupError`, with EBUSY where it has processes or children.
        """
        target = self._place(path)
        try:
            os.rmdir(target)  # noqa: PTH106 - see `_place`
        except OSError as error:
            _gone(error, target, "remove")

    def _place(self, path: CgroupPath, file: str = "") -> str:
        """Return where something is.

        A `Path` costs more than the reading of a file, and keeps every name that ever was in memory.
        """
        return f"{self.root}/{path.relative}".rstrip("/") + f"/{file}".rstrip("/")

    def _mkdir(self, path: CgroupPath) -> None:
        target = self._place(path)
        try:
            os.mkdir(target)  # noqa: PTH102 - see `_place`
        except OSError as error:
            if not os.path.isdir(target):  # noqa: PTH112 - see `_place`
                raise CgroupError(target, error.errno or 0, "create") from error

    def _enable_all(self, path: CgroupPath) -> bool:
        """Enable what is not, in one write; tells whether the cgroup is there."""
        enabled = self.read(path, CONTROLLERS_FILE)
        if not isinstance(enabled, str):
            return False
        missing = [name for name in CONTROLLERS if name not in enabled.split()]
        if HUGE_PAGES not in enabled.split():
            offered = str(self.read(path, _CONTROLLERS)).split()
            missing += [HUGE_PAGES] if HUGE_PAGES in offered else []
        signed = " ".join(f"+{name}" for name in missing)
        return not signed or self.write(path, CONTROLLERS_FILE, signed) is not GONE


def _content(file: str) -> bytes:
    """Read a whole file: an open file of Python's costs several times as much, for each of thousands."""
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = os.read(descriptor, _ONE_READ)
        while more := os.read(descriptor, _ONE_READ):
            content += more
        return content
    finally:
        os.close(descriptor)


def _gone(error: OSError, target: str, action: str) -> Gone:
    """Return `GONE` where the error says so; otherwise raise it as a `CgroupError`."""
    if error.errno in _VANISHED:
        return GONE
    raise CgroupError(target, error.errno or 0, action) from error


def check_mounted(root: Path, mountinfo: str) -> None:
    """Make sure that ``root`` lies in a writable cgroup2 mount, by a mountinfo text (proc(5)).

    Raises `EnvironmentProblem` with what is there instead and what to do.
    """
    mounts = parse_mountinfo(mountinfo)
    around = mount_around(root, mounts)
    if around is None or around.kind != "cgroup2":
        raise _something_else(root, mounts)
    if around.read_only:
        raise EnvironmentProblem(
            f"{root} is mounted read-only",
            cure="run numalet on the host, or mount the host's /sys/fs/cgroup read-write into its"
            " container and name it with hostRoot",
        )


def _something_else(root: Path, mounts: Sequence[Mount]) -> EnvironmentProblem:
    boot = "boot with systemd.unified_cgroup_hierarchy=1 (and without cgroup_no_v1=)"
    unified = [str(mount.point) for mount in mounts if mount.kind == "cgroup2"]
    if any(mount.kind == "cgroup" for mount in mounts):
        if unified:
            where = f"cgroup v1 has the controllers, cgroup v2 is at {unified[0]}"
            return EnvironmentProblem(f"{root} is hybrid: {where}", cure=boot)
        return EnvironmentProblem(f"{root} is cgroup v1, which numalet does not use", cure=boot)
    what = f"{root} is not a cgroup v2 hierarchy"
    if unified:
        what += f": cgroup2 is mounted at {unified[0]}"
    return EnvironmentProblem(what, cure="mount cgroup2 there")
