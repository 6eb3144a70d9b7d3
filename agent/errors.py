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
    """This machine is not as numalet needs it."""

    exit_status = 3


class CgroupError(EnvironmentProblem):
    """The kernel refused to read or write a cgroup file."""

    def __init__(self, path: str, errno: int, action: str) -> None:
        name = _errno.errorcode.get(errno, str(errno))
        super().__init__(f"cannot {action} {path}: {name} ({os.strerror(errno)})")
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
