"""Every error that numalet raises on purpose, with the exit status that it ends the command with.

NumaletError                1   something failed; the message says what, where and what to do
├── InputError              2   a manifest, configuration, option or description is wrong
├── EnvironmentProblem      3   this machine is not ready: no cgroup v2, not root, read-only
│   ├── CgroupError         3   the kernel refused a cgroup file
│   └── LockedError         3   another numalet holds the state folder
├── TopologyError           4   sysfs shows a machine that nobody can decide on
├── StateFileError          5   a state file is damaged or too new (only for `state` commands)
├── KubernetesError         6   the API server refused us
└── InvariantBroken        70   our own bug: nothing is written after it

Whatever else is raised is a bug too and ends with 70 (`agent.cli`); Ctrl-C ends with 130.
"""

import errno as _errno
import os


class NumaletError(Exception):
    """Base of all; ``exit_status`` is what the command ends with."""

    exit_status = 1


class InputError(NumaletError):
    """Something that a person wrote is wrong.

    ``where`` is a file with its line (``pods/db.yaml:12``), a command-line option or a key.
    """

    exit_status = 2

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where
        self.reason = message


class EnvironmentProblem(NumaletError):
    """This machine is not as numalet needs it.

    ``what`` is wrong, and ``cure`` is what helps, where the two can be told apart.
    """

    exit_status = 3

    def __init__(self, what: str, *, cure: str = "") -> None:
        super().__init__(f"{what}; {cure}" if cure else what)
        self.what = what
        self.cure = cure


_CURES = {
    _errno.EACCES: "run numalet as root",
    _errno.EPERM: "run numalet as root; to enable cpuset above processes that may do more than numalet,"
    " Linux 6.1 wants CAP_SYS_NICE, too",
    _errno.EROFS: "mount the cgroup file system read-write where numalet runs",
    _errno.EBUSY: "processes or cgroups are in the way: end them, or move them below",
    _errno.ENOSPC: "no set can be emptied while tasks run: write the effective one of the cgroup"
    " above instead",
    _errno.EOPNOTSUPP: "a cgroup above has processes of its own beside controllers that are"
    " enabled for its children (see cgroup.type): move them to a cgroup below",
    _errno.EAGAIN: "raise cgroup.max.descendants or cgroup.max.depth of a cgroup above",
    _errno.ERANGE: "this machine or file does not have that number",
    _errno.ENOENT: "the cgroup is gone, or the one above does not have the controller",
}
"""What helps, where the cause is known (cgroup2-facts sections 1 and 4)."""


class CgroupError(EnvironmentProblem):
    """The kernel refused to read or write a cgroup file; ``cure`` where it is not the usual one."""

    def __init__(self, path: str, errno: int, action: str, *, cure: str = "") -> None:
        name = _errno.errorcode.get(errno, str(errno))
        what = f"cannot {action} {path}: {name} ({os.strerror(errno)})"
        super().__init__(what, cure=cure or _CURES.get(errno, ""))
        self.path = path
        self.errno = errno


class LockedError(EnvironmentProblem):
    """Another numalet holds the state folder."""


class TopologyError(NumaletError):
    """The machine's description makes no sense."""

    exit_status = 4


class StateFileError(NumaletError):
    """A state file cannot be used."""

    exit_status = 5


class KubernetesError(NumaletError):
    """The API server cannot be used."""

    exit_status = 6


class InvariantBroken(NumaletError):
    """A promise of numalet does not hold: a bug of ours."""

    exit_status = 70
