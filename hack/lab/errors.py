"""What goes wrong in the lab itself, as opposed to in the command that a guest runs."""

LAB_FAILED = 125
TIMED_OUT = 124
"""Exit statuses, as of timeout(1) and docker-run(1)."""


class LabError(Exception):
    """A guest cannot be made or did not do its work; the message says what to do."""

    exit_status = LAB_FAILED


class UnavailableError(LabError):
    """What a guest is made of cannot be had on this machine."""


class TimeoutLabError(LabError):
    """The command took longer than it may."""

    exit_status = TIMED_OUT


class EmulationError(LabError):
    """The emulated CPUs failed, and not what ran on them: another try is worth it."""
