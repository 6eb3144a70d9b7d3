"""Files that are whole at every instant, whatever ends the process or the machine."""

import contextlib
import errno
import os
from pathlib import Path

_FILE_MODE = 0o600


class Disk:
    """The operations that a crash can come between; tests put their own in."""

    def write(self, fd: int, data: memoryview) -> int:
        """Write some of the data and return how much."""
        return os.write(fd, data)

    def fsync(self, fd: int) -> None:
        """Return when a file's content is on the disk."""
        os.fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had it."""
        source.replace(target)

    def fsync_folder(self, fd: int) -> None:
        """Return when a folder's names are on the disk."""
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system that cannot, as overlays of some kinds
                raise


def replace_file(path: Path, data: bytes, disk: Disk) -> None:
    """Give a file new content: all of it or none, and durably once this returns.

    It is written as a temporary file in the same folder, synced, renamed over the old one, and the
    rename is synced too (rename(2), fsync(2)).  Raises `OSError`.
    """
    temporary = path.with_name(f"{path.name}.new")
    try:
        _write(temporary, data, disk)
        disk.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        disk.fsync_folder(fd)
    finally:
        os.close(fd)


def _write(path: Path, data: bytes, disk: Disk) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _FILE_MODE)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[disk.write(fd, rest) :]
        disk.fsync(fd)
    finally:
        os.close(fd)
