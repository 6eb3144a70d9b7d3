"""Guards that hold for every test: nothing of this machine is written, nobody outside is called."""

import ipaddress
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Whether a test is in time is the machine's load, and no promise of ours.
settings.register_profile("numalet", deadline=None)
settings.load_profile("numalet")

_FORBIDDEN = ("/sys/", "/proc/", "/etc/", "/run/", "/var/lib/")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class _Guard:
    """An audit hook (sys.addaudithook) that can be switched; Python has no way to remove one."""

    def __init__(self) -> None:
        self.forbidden: tuple[str, ...] = ()
        self.active = False
        sys.addaudithook(self.audit)

    def audit(self, event: str, args: tuple[object, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            path, _, flags = args
            writes = isinstance(flags, int) and flags & _WRITES
            if writes and isinstance(path, str) and path.startswith(self.forbidden):
                raise PermissionError(f"a test must not write {path}")
        elif event == "socket.connect":
            address = args[1]
            if isinstance(address, tuple) and not _is_loopback(address[0]):
                raise PermissionError(f"a test must not call {address[0]}")


def _is_loopback(host: object) -> bool:
    try:
        return not isinstance(host, str) or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_GUARD = _Guard()


@pytest.fixture(autouse=True)
def _host_is_left_alone(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that writes to this machine's own files, or calls an address outside of it."""
    real = request.node.get_closest_marker("realcgroup") is not None
    _GUARD.forbidden = () if real else _FORBIDDEN
    _GUARD.active = True
    yield
    _GUARD.active = False
