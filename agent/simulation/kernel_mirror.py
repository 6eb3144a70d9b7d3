"""The simulated cgroups as plain files, for a person to read and to edit."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from agent.core.cgroups import CgroupPath
from agent.errors import EnvironmentProblem


class Mirror:
    """A folder that shows every cgroup as a directory of text files.

    It remembers what it wrote, so that it can tell what somebody else has written since.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._shown: dict[CgroupPath, dict[str, str]] = {}

    def show(self, path: CgroupPath, files: Mapping[str, str]) -> None:
        """Make the directory of a cgroup say ``files``; what says so already is left alone.

        Raises `EnvironmentProblem` where the folder cannot be written.
        """
        try:
            self._show(path, files)
        except OSError as error:
            raise EnvironmentProblem(
                f"cannot show cgroup {path} in {self.root}: {error}; the simulation needs a folder"
                " that it can write"
            ) from error

    def _show(self, path: CgroupPath, files: Mapping[str, str]) -> None:
        folder = self.root / path.relative
        shown = self._shown.setdefault(path, {})
        for name in shown.keys() - files.keys():
            (folder / name).unlink(missing_ok=True)
            del shown[name]
        for name, text in files.items():
            if shown.get(name) != _with_newline(text):
                folder.mkdir(parents=True, exist_ok=True)
                _overwrite(folder / name, _with_newline(text).encode())
                shown[name] = _with_newline(text)

    def drop(self, path: CgroupPath) -> None:
        """Remove the directory of a cgroup that is gone."""
        self._shown.pop(path, None)
        shutil.rmtree(self.root / path.relative, ignore_errors=True)

    def edits(self) -> list[tuple[CgroupPath, str, str]]:
        """Return the files that do not say what was shown, those of cgroups above first.

        A file that was removed counts as emptied.  The next `show` of the cgroup repairs all.
        """
        found = []
        for path, shown in sorted(self._shown.items()):
            for name in sorted(shown):
                now = _text(self.root / path.relative / name)
                if now == shown[name]:
                    continue
                found.append((path, name, now or ""))
                if now is None:
                    del shown[name]
                else:
                    shown[name] = now
        return found


def _overwrite(file: Path, content: bytes) -> None:
    # Not truncated first: ext4 would then wait for the disk at close (auto_da_alloc).
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, content)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)


def _with_newline(text: str) -> str:
    return f"{text}\n" if text else ""


def _text(file: Path) -> str | None:
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError:
        return None
