"""Kernels for guests: taken out of Debian's packages, with an initramfs of our own."""

import gzip
import lzma
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from hack.lab import cpio, packages
from hack.lab.errors import LabError, UnavailableError

GUEST_FILES = Path(__file__).parent / "guest"
KERNELS = {
    "6.1": ("linux-image-amd64",),
    "6.12": ("linux-image-6.12-amd64", "linux-image-amd64"),
}
"""The packages that may depend on a kernel of each version; which one does depends on the Debian."""

MODULES = (
    "virtio_pci", "virtio_blk", "virtio_console", "9pnet_virtio", "9p", "ext4", "crc32c_generic", "overlay",
)  # fmt: skip
"""Those that guests need, with what they depend on; one that is not there is built in."""

_ELF = b"\x7fELF"
_XZ = b"\xfd7zXZ"
_ZSTD = b"\x28\xb5\x2f\xfd"


def build(version: str, target: Path) -> None:
    """Make the folder ``target`` with ``vmlinux`` and ``initrd`` of a kernel version.

    Raises `UnavailableError` where apt has no such kernel.
    """
    with TemporaryDirectory(dir=target.parent) as name:
        work = Path(name)
        kernel = _unpacked(_package(version), work / "kernel")
        busybox = _unpacked("busybox-static", work / "busybox")
        made = work / "made"
        made.mkdir()
        compressed = next((kernel / "boot").glob("vmlinuz-*"))
        (made / "version").write_text(compressed.name.removeprefix("vmlinuz-") + "\n")
        (made / "vmlinux").write_bytes(elf_kernel(compressed.read_bytes()))
        initramfs = _initramfs(kernel / "lib/modules", next(busybox.glob("**/bin/busybox")))
        (made / "initrd").write_bytes(initramfs)
        made.rename(target)


def _package(version: str) -> str:
    """Return the package that has a kernel of this version, according to apt."""
    wanted = re.compile(rf"Depends: (linux-image-{re.escape(version)}[.+]\S*)")
    for fresh in (False, True):
        if fresh:
            packages.refresh_lists()
        for name in KERNELS[version]:
            # apt-cache fails for a name that it does not know
            shown = packages.run(["sh", "-c", f"apt-cache depends {name} 2>/dev/null || true"])
            if match := wanted.search(shown.decode()):
                return match[1]
    raise UnavailableError(
        f"apt has no kernel {version} (asked for {' and '.join(KERNELS[version])}): add a Debian"
        " source that has it (Debian 12 has both in bookworm-security) and run 'apt-get update'"
        " as root, or choose another --kernel"
    )


def _unpacked(package: str, folder: Path) -> Path:
    folder.mkdir()
    # The sandbox user of apt may not write here; without it apt warns, and goes on.
    packages.run(["apt-get", "-q", "download", package], cwd=str(folder))
    packages.run(["dpkg-deb", "-x", str(next(folder.glob("*.deb"))), str(folder / "x")])
    return folder / "x"


def elf_kernel(image: bytes) -> bytes:
    """Return the kernel inside a bzImage, for QEMU to enter through PVH.

    That an emulated CPU need not decompress it saves 2.5 of 7 s (cgroup2-facts section 8).  The
    offsets are those of Documentation/x86/boot: setup_sects, payload_offset, payload_length.
    """
    start = (image[0x1F1] + 1) * 512 + int.from_bytes(image[0x248:0x24C], "little")
    payload = image[start : start + int.from_bytes(image[0x24C:0x250], "little")]
    if payload.startswith(_XZ):
        kernel = lzma.LZMADecompressor().decompress(payload)
    elif payload.startswith(_ZSTD):
        # Its last four bytes are the unpacked size, which zstd takes for garbage.
        kernel = packages.run(["zstd", "-dcq"], given=payload[:-4])
    else:
        kernel = gzip.decompress(payload)
    if not kernel.startswith(_ELF):
        raise LabError("the kernel's image is compressed in a way that the lab does not know")
    return kernel


def _initramfs(modules: Path, busybox: Path) -> bytes:
    """Return an uncompressed cpio archive: it unpacks fastest where the CPU is emulated."""
    order: dict[str, bytes] = {}
    files = {f.name.split(".ko")[0].replace("-", "_"): f for f in modules.rglob("*.ko*")}
    for name in MODULES:
        _add_module(name, files, order)
    return cpio.archive(
        {
            "init": (GUEST_FILES / "init").read_bytes(),
            "bin/busybox": busybox.read_bytes(),
            "modules.list": "".join(f"{name}\n" for name in order).encode(),
            **{f"m/{name}": content for name, content in order.items()},
        }
    )


def _add_module(name: str, files: dict[str, Path], order: dict[str, bytes]) -> None:
    """Add a module after those that it depends on (``depends=`` and ``softdep=`` of .modinfo)."""
    name = name.replace("-", "_")
    if name in order or name not in files:
        return
    content = files[name].read_bytes()
    if files[name].suffix == ".xz":
        content = lzma.decompress(content)
    for entry in content.split(b"\0"):
        key, _, value = entry.partition(b"=")
        if key == b"depends":
            needed = value.decode().split(",")
        elif key == b"softdep" and value.startswith(b"pre: "):
            needed = value.decode().split()[1:]
        else:
            continue
        for other in needed:
            _add_module(other, files, order)
    order[name] = content
