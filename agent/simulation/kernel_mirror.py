"""The simulated cgroups as plain files, for a person to read and to edit."""

import os
import shutil
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from agent.core.cgroups import CgroupPath
from agent.errors import EnvironmentProblem

_LONGEST_EDIT = 65_536
"""So many bytes of a file are read: the kernel takes no longer write."""
_NO_WAITING = os.O_NOFOLLOW | os.O_NONBLOCK
"""What somebody put in a file's place (a link, a pipe) is not what is opened."""


class Mirror:
    """A folder that shows every cgroup as a directory of text files.

    It remembers what it wrote, so that it can tell what somebody else has written since.  Whatever
    somebody puts in the way of a file is removed.  ``spoilt`` are the cgroups that do not show what
    they say, by an edit or because the disk refuses: `show` them again.
    """

    def __init__(self, root: Path) -> None:
        """Make the folder; raises `EnvironmentProblem` where it cannot be written."""
        self.root = root
        self.spoilt: set[CgroupPath] = set()
        self._shown: dict[CgroupPath, dict[str, str]] = {}
        try:
            root.mkdir(parents=True, exist_ok=True)
            _overwrite(root / "cgroup.controllers", b"")
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot show cgroups in {root}: {error}; the simulation needs a folder that it can"
                " write"
            ) from error

    def show(self, path: CgroupPath, files: Mapping[str, str]) -> None:
        """Make the directory of a cgroup say ``files``; what says so already is left alone."""
        folder, shown = self.root / path.relative, self._shown.setdefault(path, {})
        wanted = {name: f"{text}\n" if text else "" for name, text in files.items()}
        gone = shown.keys() - wanted.keys()
        changed = {name: text for name, text in wanted.items() if shown.get(name) != text}
        self.spoilt.discard(path)
        try:
            if gone or changed:
                self._make_folders(path)
            for name in gone:
                _remove(folder / name)
                del shown[name]
            for name, text in changed.items():
                shown.pop(name, None)
                _write(folder / name, text.encode())
                shown[name] = text
        except OSError:
            self.spoilt.add(path)

    def drop(self, path: CgroupPath) -> None:
        """Remove the directory of a cgroup that is gone."""
        self._shown.pop(path, None)
        self.spoilt.discard(path)
        with suppress(OSError):
            self._make_folders(path.parent)
            _remove(self.root / path.relative)

    def edits(self) -> list[tuple[CgroupPath, str, str]]:
        """Return the files that do not say what was shown, those of cgroups above first.

        One that was removed, or is no file that can be read any more, counts as emptied.
        """
        found = []
        for path, shown in sorted(self._shown.items()):
            for name in sorted(shown):
                now = _text(self.root / path.relative / name)
                if now == shown[name]:
                    continue
                found.append((path, name, now or ""))
                self.spoilt.add(path)
                if now is None:
                    del shown[name]
                else:
                    shown[name] = now
        return found

    def _make_folders(self, path: CgroupPath) -> None:
        """Make all directories down to a cgroup's; what stands in the way is removed.

        A link is, too: nothing is ever written or removed behind one.
        """
        _make_folder(self.root)
        for depth in range(1, path.depth + 1):
            _make_folder(self.root.joinpath(*path.relative.split("/")[:depth]))


def _make_folder(folder: Path) -> None:
    if not _is_folder(folder):
        _remove(folder)
        folder.mkdir(parents=True)
    elif not os.access(folder, os.W_OK | os.X_OK):
        folder.chmod(0o755)


def _write(file: Path, content: bytes) -> None:
    try:
        _overwrite(file, content)
    except OSError:  # something else has its name, or its mode was changed
        _remove(file)
        _overwrite(file, content)


def _remove(path: Path) -> None:
    if _is_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _overwrite(file: Path, content: bytes) -> None:
    # Not truncated first: ext4 would then wait for the disk at close (auto_da_alloc).
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | _NO_WAITING, 0o644)
    try:
        os.write(descriptor, content)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)


def _text(file: Path) -> str | None:
    try:
        descriptor = os.open(file, os.O_RDONLY | _NO_WAITING)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return os.read(descriptor, _LONGEST_EDIT).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
