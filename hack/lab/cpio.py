"""Archives in the format of initramfs (Documentation/driver-api/early-userspace/buffer-format)."""

from collections.abc import Iterator, Mapping

_FOLDER = 0o040755
_FILE = 0o100755


def archive(files: Mapping[str, bytes]) -> bytes:
    """Return an uncompressed archive of files by path, all executable, with the folders they need."""
    folders = {path[:end]: None for path in files for end, char in enumerate(path) if char == "/"}
    entries = [*((name, _FOLDER, b"") for name in folders)]
    entries += [(name, _FILE, content) for name, content in files.items()]
    parts = [part for i, entry in enumerate(entries, start=1) for part in _entry(i, *entry)]
    return b"".join([*parts, *_entry(0, "TRAILER!!!", 0, b"")])


def _entry(inode: int, name: str, mode: int, content: bytes) -> Iterator[bytes]:
    """Yield a header of eight digits a field, the name and the content, padded to four bytes."""
    path = name.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, device of it, device that it is, name, checksum
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    header = b"070701" + b"".join(b"%08x" % field for field in fields)
    yield header + path + bytes(-len(header + path) % 4)
    yield content + bytes(-len(content) % 4)
