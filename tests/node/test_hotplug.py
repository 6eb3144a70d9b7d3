import errno
import gc
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import EnvironmentProblem
from agent.node.hotplug import HotplugWatch, Messages, changed_hardware, open_uevents
from agent.ports import Event, HardwareChanged

NETLINK_KOBJECT_UEVENT = 15  # linux/netlink.h


def uevent(action: str, path: str, subsystem: str, *more: str) -> bytes:
    fields = (f"ACTION={action}", f"DEVPATH={path}", f"SUBSYSTEM={subsystem}", *more, "SEQNUM=820")
    return "\0".join((f"{action}@{path}", *fields, "")).encode()


CPU3_OFFLINE = uevent("offline", "/devices/system/cpu/cpu3", "cpu", "MODALIAS=cpu:type:x86\n")


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (CPU3_OFFLINE, "cpu3 offline"),
        (uevent("online", "/devices/system/memory/memory32", "memory"), "memory32 online"),
        (uevent("add", "/devices/system/cpu/cpu12", "cpu"), "cpu12 add"),
        (uevent("remove", "/devices/system/memory/memory7", "memory"), "memory7 remove"),
        (uevent("change", "/devices/system/cpu/cpu3", "cpu"), None),
        (uevent("add", "/devices/virtual/net/eth0", "net"), None),
        (uevent("add", "", "cpu"), None),
        (b"libudev\0\xfe\xed\xca\xfe\0\0\0(\0\0\0(\0\0\0", None),
        (b"\xff\xfe=\0=\0SUBSYSTEM", None),
        (b"", None),
    ],
)
def test_only_cpus_and_memory_that_come_or_go_are_of_interest(
    message: bytes, what: str | None
) -> None:
    assert changed_hardware(message) == what


class Scripted:
    """Messages that a test sends; an entry may also be the error that the kernel answers with."""

    def __init__(self, *script: bytes | OSError) -> None:
        self._script = list(script)
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for _ in script:
            self._theirs.send(b"!")

    def fileno(self) -> int:
        return self._ours.fileno()

    def recv(self, size: int, /) -> bytes:
        self._ours.recv(size)
        entry = self._script.pop(0)
        if isinstance(entry, OSError):
            raise entry
        return entry

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    threads, descriptors = threading.active_count(), open_descriptors()
    yield
    gc.collect()  # an unclosed socket warns here, and a warning is an error
    assert threading.active_count() == threads
    assert open_descriptors() == descriptors


def posts_of(messages: Messages, count: int) -> list[Event]:
    events: queue.Queue[Event] = queue.Queue()
    watch = HotplugWatch(events.put, open_messages=lambda: messages)
    watch.start()
    try:
        return [events.get(timeout=10) for _ in range(count)]
    finally:
        watch.close()


def test_each_cpu_or_memory_block_that_changes_is_posted_in_order() -> None:
    script = Scripted(CPU3_OFFLINE, uevent("add", "/x/y", "usb"), CPU3_OFFLINE.replace(b"3", b"4"))

    assert posts_of(script, 2) == [HardwareChanged("cpu3 offline"), HardwareChanged("cpu4 offline")]


def test_lost_uevents_are_posted_as_an_unknown_change() -> None:
    lost = OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    unknown, known = posts_of(Scripted(lost, CPU3_OFFLINE), 2)
    assert isinstance(unknown, HardwareChanged)
    assert "more uevents than the kernel keeps" in unknown.what
    assert known == HardwareChanged("cpu3 offline")


def test_a_message_that_is_gone_again_is_no_event() -> None:
    assert posts_of(Scripted(BlockingIOError(), CPU3_OFFLINE), 1) == [
        HardwareChanged("cpu3 offline")
    ]


def test_the_last_post_of_a_watch_whose_socket_fails_says_so() -> None:
    (last,) = posts_of(Scripted(OSError(errno.EBADF, "Bad file descriptor")), 1)

    assert isinstance(last, HardwareChanged)
    assert "no uevents any more (Bad file descriptor)" in last.what


def test_a_socket_that_is_refused_is_said_at_start_with_what_to_do() -> None:
    def refused() -> Messages:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    watch = HotplugWatch(lambda event: None, open_messages=refused)
    with pytest.raises(EnvironmentProblem, match=r"Operation not permitted; run as root"):
        watch.start()
    watch.close()


def test_closing_ends_the_thread_promptly_and_twice_is_as_good_as_once() -> None:
    watch = HotplugWatch(lambda event: None, open_messages=Scripted)
    watch.start()
    begin = time.monotonic()
    watch.close()
    watch.close()

    assert time.monotonic() - begin < 1


def test_a_watch_that_never_started_can_be_closed() -> None:
    HotplugWatch(lambda event: None).close()


def test_the_kernels_socket_is_heard_and_given_back() -> None:
    events: queue.Queue[Event] = queue.Queue()
    ports: queue.Queue[int] = queue.Queue()

    def opened() -> Messages:
        messages = open_uevents()
        with socket.socket(fileno=os.dup(messages.fileno())) as same:
            ports.put(same.getsockname()[0])
        return messages

    watch = HotplugWatch(events.put, open_messages=opened)
    try:
        watch.start()
    except EnvironmentProblem as problem:
        pytest.skip(str(problem))
    try:
        # Only the kernel speaks to the group, but root may speak to one socket.
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_KOBJECT_UEVENT) as sender:
            sender.sendto(CPU3_OFFLINE, (ports.get(timeout=10), 0))
        assert events.get(timeout=10) == HardwareChanged("cpu3 offline")
    except PermissionError as problem:
        pytest.skip(f"cannot send to a uevent socket: {problem}")
    finally:
        watch.close()
