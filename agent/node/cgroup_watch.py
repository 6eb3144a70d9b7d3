"""Cgroups that appear, vanish or change, noticed at once through one inotify instance.

What the kernel tells was tried (cgroup2-facts section 5), on 6.1 and 6.12: it reports directories
that are made and removed in a watched one, and every write to a watched file, that of
``cgroup.events`` included, which the kernel writes.  It does not report that what is watched has
itself gone: such a watch stays, deaf, even when the same path is made again.
"""

import errno
import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Protocol

from inotify_simple import INotify, flags  # type: ignore[import-untyped] # publishes no types

from agent.core.cgroups import CgroupPath

_EVERYTHING = CgroupPath()
_FOLDER_EVENTS = flags.CREATE | flags.DELETE | flags.ONLYDIR | flags.DONT_FOLLOW
_FILE_EVENTS = flags.MODIFY | flags.DONT_FOLLOW
_VANISHED = (errno.ENOENT, errno.ENODEV)
_CURES = {
    errno.EMFILE: "raise fs.inotify.max_user_instances, or the limit of open files",
    errno.ENOSPC: "raise fs.inotify.max_user_watches",
    errno.EAGAIN: "raise pids.max of numalet's own cgroup",
}


class Inotify(Protocol):
    """An inotify instance (inotify(7))."""

    def fileno(self) -> int:
        """Return the descriptor, readable when something has happened."""
        ...

    def add_watch(self, path: str, mask: int, /) -> int:
        """Watch a file, and return its number: the same one as long as it is the same inode."""
        ...

    def rm_watch(self, number: int, /) -> None:
        """Watch something no more."""
        ...

    def read(self, timeout: int) -> Sequence[tuple[int, int, int, str]]:
        """Return number, mask, cookie and name of each event."""
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


class CgroupWatch:
    """A thread that says which of the watched cgroups is to be looked at again.

    ``on_change`` is called with a watched cgroup, or with the root of the hierarchy where anything
    may have changed; ``on_degraded`` with what keeps changes from being noticed; ``on_made`` with a
    cgroup that was made just now, before the change is told.  They are called by this thread and by
    that of `watch`, and must not wait.
    """

    def __init__(
        self,
        root: Path,
        *,
        on_change: Callable[[CgroupPath], None],
        on_degraded: Callable[[str], None],
        on_made: Callable[[CgroupPath], None] = lambda _path: None,
        open_inotify: Callable[[], Inotify] = INotify,
    ) -> None:
        self._root = root
        self._on_change = on_change
        self._on_degraded = on_degraded
        self._on_made = on_made
        self._open = open_inotify
        self._inotify: Inotify | None = None
        self._resources = ExitStack()
        self._lock = threading.Lock()
        self._watched: dict[int, tuple[CgroupPath, str]] = {}
        self._remade: set[str] = set()
        """Cgroups that went or came since they were watched: a watch there may be deaf."""
        self._closed = False
        self._problem = ""

    @property
    def problem(self) -> str:
        """What kept the last `watch` from watching everything; empty where nothing did."""
        return self._problem

    def watch(
        self,
        folders: Iterable[CgroupPath],
        files: Iterable[tuple[CgroupPath, str]] = (),
        *,
        anew: bool = True,
    ) -> None:
        """Watch exactly these from now on: cgroups for cgroups directly below, files for writes.

        Where something is watched that was not, a change of that cgroup is told, for what happened
        before.  What has vanished is left out.  What cannot be watched is told as degraded, once as
        long as the reason stays, and tried again in the next call; anything may have changed then.

        ``anew`` finds also a cgroup that was made again where nobody watches the one above it.
        """
        wanted = [(path, "", _FOLDER_EVENTS) for path in folders]
        wanted += [(path, file, _FILE_EVENTS) for path, file in files]
        with self._lock:
            if self._closed:
                return
            known, known_problem = self._watched, self._problem
            kept = {} if anew else {watched: number for number, watched in known.items()}
            self._watched, self._problem = self._rewatch(wanted, kept)
            fresh = {path for n, (path, _) in self._watched.items() if n not in known}
        if self._problem not in ("", known_problem):
            self._on_degraded(self._problem)
            fresh = {_EVERYTHING}
        for path in sorted(fresh):
            self._on_change(path)

    def close(self) -> None:
        """End the thread and give everything back; nothing happens the second time."""
        with self._lock:
            self._closed = True
        self._resources.close()

    def _rewatch(
        self,
        wanted: Iterable[tuple[CgroupPath, str, int]],
        kept: Mapping[tuple[CgroupPath, str], int],
    ) -> tuple[dict[int, tuple[CgroupPath, str]], str]:
        """Return what is watched, by number, and what went wrong.

        All but what is ``kept`` is added again: only that finds a cgroup that was made again.
        """
        watched: dict[int, tuple[CgroupPath, str]] = {}
        remade, self._remade = self._remade, set()
        try:
            inotify = self._inotify or self._start()
        except OSError as error:
            return watched, _sentence(error)
        problem = ""
        for path, file, mask in wanted:
            number = kept.get((path, file))
            try:
                if number is None or _is_any(remade, path):
                    place = f"{self._root}/{path.relative}/{file}"
                    # With "/" at its end a symbolic link would be followed.
                    number = inotify.add_watch(place.rstrip("/"), mask)
            except OSError as error:
                if error.errno not in _VANISHED:
                    problem = problem or _sentence(error)
                continue
            watched[number] = path, file
        for number in self._watched.keys() - watched.keys():
            with suppress(OSError):  # EINVAL: it ended by itself, as they do outside of cgroupfs
                inotify.rm_watch(number)
        return watched, problem

    def _start(self) -> Inotify:
        with ExitStack() as stack:
            inotify = stack.enter_context(closing(self._open()))
            wake = os.eventfd(0)
            stack.callback(os.close, wake)
            thread = threading.Thread(
                target=self._run, args=(inotify, wake), name="cgroups", daemon=True
            )
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, "no thread can be started") from error
            stack.callback(thread.join)
            stack.callback(os.eventfd_write, wake, 1)
            self._resources = stack.pop_all()
        self._inotify = inotify
        return inotify

    def _run(self, inotify: Inotify, wake: int) -> None:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        poll.register(inotify.fileno(), select.POLLIN)
        while all(descriptor != wake for descriptor, _ in poll.poll()):
            self._tell(inotify.read(timeout=0))

    def _tell(self, events: Sequence[tuple[int, int, int, str]]) -> None:
        if any(mask & flags.Q_OVERFLOW for _, mask, _, _ in events):
            self._on_degraded(
                "changes of cgroups were lost: more than fs.inotify.max_queued_events"
            )
            self._on_change(_EVERYTHING)
            return
        with self._lock:
            self._remade.update(self._gone_or_made(events))
            changed = dict.fromkeys(self._changed(events))
            made = list(self._made(events))
        for path in made:
            self._on_made(path)
        for path in changed:
            self._on_change(path)

    def _changed(self, events: Sequence[tuple[int, int, int, str]]) -> Iterator[CgroupPath]:
        """Yield the cgroups of events, without those of plain files and of former watches."""
        for number, mask, _, _ in events:
            if number in self._watched and mask & (flags.ISDIR | flags.MODIFY):
                yield self._watched[number][0]

    def _gone_or_made(self, events: Sequence[tuple[int, int, int, str]]) -> Iterator[str]:
        """Yield where these events say that a cgroup went or came."""
        for number, mask, _, name in events:
            if number in self._watched and mask & flags.ISDIR:
                yield (self._watched[number][0] / name).relative

    def _made(self, events: Sequence[tuple[int, int, int, str]]) -> Iterator[CgroupPath]:
        """Yield the cgroups that these events say were made."""
        for number, mask, _, name in events:
            if number in self._watched and mask & flags.ISDIR and mask & flags.CREATE:
                yield self._watched[number][0] / name


def _is_any(remade: set[str], path: CgroupPath) -> bool:
    """Tell whether a cgroup, or one above it, is among these."""
    above = path.relative if remade else ""
    while above:
        if above in remade:
            return True
        above = above.rpartition("/")[0]
    return False


def _sentence(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    cure = f"; {_CURES[error.errno]}" if error.errno in _CURES else ""
    return f"cannot watch every cgroup: {name} ({error.strerror}){cure}"
