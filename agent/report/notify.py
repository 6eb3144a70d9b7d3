"""What the service manager is told about a service of ``Type=notify`` (sd_notify(3)).

One datagram, by hand: that is all that the protocol is.
"""

import contextlib
import os
import socket
from collections.abc import Mapping

from agent.ports import Snapshot

_SECOND_US = 1_000_000


class ServiceManager:
    """The manager that started this process as a service; nobody is told where none did."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Take the manager's address and its watchdog from the variables that it sets."""
        self._address = environment.get("NOTIFY_SOCKET", "")
        self._watchdog_us = environment.get("WATCHDOG_USEC", "")
        self._watched = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())

    def at_most_s(self, interval_s: float) -> float:
        """Return an interval that is no longer than half of the watchdog's patience.

        Who tells of a snapshot that often is never taken for hung (sd_watchdog_enabled(3)).
        """
        if not self._watched or not self._watchdog_us.isdecimal() or not int(self._watchdog_us):
            return interval_s
        return min(interval_s, int(self._watchdog_us) / _SECOND_US / 2)

    def tell(self, snapshot: Snapshot) -> None:
        """Tell how the agent is, and that it lives.

        It counts as started once it has enforced all that it could: what then is still wrong, it
        keeps trying.
        """
        lines = ["WATCHDOG=1", f"STATUS={_status(snapshot)}"]
        if snapshot.ready or snapshot.problems:
            lines.append("READY=1")
        self._send(lines)

    def stopping(self) -> None:
        """Tell that the end has begun; it may take as long as a write that the kernel is busy with."""
        self._send(["STOPPING=1", "STATUS=stopping; the cgroups are left as they are"])

    def _send(self, lines: list[str]) -> None:
        if not self._address:
            return
        # A name that begins with "@" is an abstract one, unix(7).
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
            sending.settimeout(0)  # a manager that does not read must not hold up anything
            with contextlib.suppress(OSError):  # the next message says it again
                sending.sendto("\n".join(lines).encode(), address)


def _status(snapshot: Snapshot) -> str:
    pods, rejected = len(snapshot.pods), len(snapshot.rejections)
    text = f"pods: {pods - rejected} admitted, {rejected} rejected"
    if snapshot.problems:
        text += f"; problems: {len(snapshot.problems)}, the first: {snapshot.problems[0]}"
    elif not snapshot.source.healthy:
        text += f"; {snapshot.source.detail}"
    return text.replace("\n", " ")
