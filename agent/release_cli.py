"""The command ``numalet release``: everything back as it was before numalet wrote to it."""

import sys

from agent.cli_options import ConfigOption, StateOption
from agent.config import load
from agent.errors import EnvironmentProblem, LockedError
from agent.giving_back import release as release_all
from agent.node.cgroup_layout import SINGLE_HOST_SLICE
from agent.node.cgroupfs import CGROUPS, CgroupFs
from agent.node.journal import Journal
from agent.node.procfs import boot_id
from agent.node.state_folder import StateFolderLock


def release(state: StateOption = None, config: ConfigOption = None) -> None:
    """Give back every value that numalet has overwritten, and remove its own empty cgroups.

    The daemon must have been stopped.  Where the kernel does not take the old value, it says what
    stands there instead. The checkpoint stays: started again, numalet places every pod as before.
    """
    loaded = load(config)
    folder = state or loaded.state_dir
    lock = StateFolderLock(folder)
    try:
        lock.acquire()
    except LockedError as error:
        raise LockedError(f"{error}; stop it first: it would write everything again") from error
    try:
        journal = Journal(folder, boot_id=boot_id())
        problem = journal.load()
        if problem:
            print(problem, file=sys.stderr)  # noqa: T201 - commands print
        cgroups = CgroupFs(loaded.host_root / CGROUPS)
        cgroups.check()
        given = release_all(cgroups, journal, SINGLE_HOST_SLICE)
    finally:
        lock.release()
    for sentence in (*journal.lost(), *given.notes):
        print(sentence)  # noqa: T201
    print(f"{len(given.done)} values given back")  # noqa: T201
    if given.problems:
        raise EnvironmentProblem("; ".join(given.problems))
