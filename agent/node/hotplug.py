"""CPUs and memory that come and go: the kernel's uevents, heard through pyroute2."""

import errno
import selectors
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing
from typing import Protocol

from agent.errors import EnvironmentProblem
from agent.lean_import import without_init
from agent.ports import HardwareChanged, Post

_KERNEL_GROUP = 1  # group 2 repeats what udev made of the same events
_LARGEST_MESSAGE = 16_384  # bytes; the kernel's UEVENT_BUFFER_SIZE is 2048, and a header
_SUBSYSTEMS = frozenset({"cpu", "memory"})
_ACTIONS = frozenset({"add", "remove", "online", "offline"})


class Messages(Protocol):
    """A socket from which one message after the other can be received."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable."""
        ...

    def recv(self, size: int, /) -> bytes:
        """Return the next message, without waiting for it."""
        ...

    def close(self) -> None:
        """Give the descriptor back."""
        ...


def changed_hardware(message: bytes) -> str | None:
    """Return what a uevent says of a CPU or memory block, as in ``cpu3 offline``.

    None for any other message.  A uevent is ``ACTION@DEVPATH`` and then ``KEY=value`` fields, each
    ended by a NUL byte (lib/kobject_uevent.c).
    """
    fields = dict(
        field.split("=", 1)
        for field in message.decode("utf-8", errors="replace").split("\0")[1:]
        if "=" in field
    )
    device = fields.get("DEVPATH", "").rpartition("/")[2]
    action = fields.get("ACTION")
    if fields.get("SUBSYSTEM") not in _SUBSYSTEMS or action not in _ACTIONS or not device:
        return None
    return f"{device} {action}"


def open_uevents() -> Messages:
    """Return a socket that hears the kernel's uevents; it belongs to the calling thread.

    Raises `OSError` where the kernel does not allow it.
    """
    with without_init("pyroute2"):
        from pyroute2.netlink.uevent import UeventSocket  # noqa: PLC0415 - only if it is wanted

    uevents = UeventSocket()
    try:
        # Its own event loop is never run: messages wait in the kernel until recv.
        uevents.bind(groups=_KERNEL_GROUP)
    except KeyError as problem:  # pyroute2 tries many addresses, whatever the reason was
        uevents.close()
        raise PermissionError(errno.EPERM, "bind refused") from problem
    messages: Messages = uevents
    return messages


class HotplugWatch:
    """A thread that posts `HardwareChanged` for every CPU or memory block that comes or goes."""

    def __init__(self, post: Post, *, open_messages: Callable[[], Messages] = open_uevents) -> None:
        self._post = post
        self._open = open_messages
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None

    def start(self) -> None:
        """Listen from now on; to miss nothing, read the topology after this.

        Raises `EnvironmentProblem` where uevents cannot be heard.
        """
        woken, self._wake = socket.socketpair()
        opened: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(woken, opened), name="hotplug", daemon=True
        )
        self._thread.start()
        try:
            opened.result()
        except OSError as problem:
            self.close()
            raise EnvironmentProblem(
                f"cannot hear when CPUs and memory come or go (NETLINK_KOBJECT_UEVENT): "
                f"{problem.strerror or problem}; run as root: meanwhile CPUs are compared in each pass,"
                " and memory counts as it was at the start"
            ) from problem

    def close(self) -> None:
        """End the thread and give its sockets back; nothing happens the second time."""
        if self._wake is not None:
            self._wake.close()
            self._wake = None
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, woken: socket.socket, opened: Future[None]) -> None:
        with ExitStack() as stack:
            stack.enter_context(woken)
            try:
                messages = stack.enter_context(closing(self._open()))
            except BaseException as problem:  # noqa: BLE001 raised again in the thread that waits
                opened.set_exception(problem)
                return
            ready = stack.enter_context(selectors.DefaultSelector())
            ready.register(woken, selectors.EVENT_READ)
            ready.register(messages, selectors.EVENT_READ)
            opened.set_result(None)
            try:
                while all(key.fileobj is not woken for key, _ in ready.select()):
                    self._receive(messages)
            except OSError as problem:
                what = f"from now on nobody knows: no uevents any more ({problem.strerror})"
                self._post(HardwareChanged(what))

    def _receive(self, messages: Messages) -> None:
        try:
            what = changed_hardware(messages.recv(_LARGEST_MESSAGE))
        except BlockingIOError:
            return
        except OSError as problem:
            if problem.errno != errno.ENOBUFS:
                raise
            what = "something unknown: there were more uevents than the kernel keeps"
        if what is not None:
            self._post(HardwareChanged(what))
