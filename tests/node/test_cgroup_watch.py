import errno
import gc
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inotify_simple import INotify  # type: ignore[import-untyped] # publishes no types

from agent.core.cgroups import EVENTS_FILE, CgroupPath
from agent.node.cgroup_watch import CgroupWatch, Inotify
from tests.scratch import scratch_folder

EVERYTHING = CgroupPath()
KUBEPODS, POD, OTHER = CgroupPath("kubepods"), CgroupPath("kubepods/pod1"), CgroupPath("other")
PATIENCE_S = 10
DESCRIPTORS = Path("/proc/self/fd")
QUEUE_LIMIT = Path("/proc/sys/fs/inotify/max_queued_events")


class Heard:
    """What a watch told, in order; `changes` are cgroups, `troubles` sentences."""

    def __init__(self) -> None:
        self.changes: queue.SimpleQueue[CgroupPath] = queue.SimpleQueue()
        self.troubles: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.made: queue.SimpleQueue[CgroupPath] = queue.SimpleQueue()

    def change(self) -> CgroupPath:
        return self.changes.get(timeout=PATIENCE_S)

    def trouble(self) -> str:
        return self.troubles.get(timeout=PATIENCE_S)

    @contextmanager
    def watch(
        self, root: Path, open_inotify: Callable[[], Inotify] = INotify
    ) -> Iterator[CgroupWatch]:
        watch = CgroupWatch(
            root,
            on_change=self.changes.put,
            on_degraded=self.troubles.put,
            on_made=self.made.put,
            open_inotify=open_inotify,
        )
        try:
            yield watch
        finally:
            watch.close()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for path in (POD, OTHER):
        (tmp_path / path.relative).mkdir(parents=True)
    (tmp_path / POD.relative / EVENTS_FILE).write_text("populated 1\nfrozen 0\n")
    return tmp_path


@pytest.fixture
def watch(heard: Heard, root: Path) -> Iterator[CgroupWatch]:
    with heard.watch(root) as watch:
        yield watch


def test_a_cgroup_that_appears_is_told_by_the_one_above(
    watch: CgroupWatch, heard: Heard, root: Path
) -> None:
    watch.watch([KUBEPODS])
    assert heard.change() == KUBEPODS
    (root / "kubepods/pod2").mkdir()
    assert heard.change() == KUBEPODS
    assert heard.made.get_nowait() == KUBEPODS / "pod2"


def test_a_cgroup_that_vanishes_is_told_by_the_one_above(
    watch: CgroupWatch, heard: Heard, root: Path
) -> None:
    (root / "kubepods/pod2").mkdir()
    watch.watch([KUBEPODS])
    assert heard.change() == KUBEPODS
    (root / "kubepods/pod2").rmdir()
    assert heard.change() == KUBEPODS
    assert heard.made.empty()


def test_a_write_to_a_watched_file_is_told_by_its_cgroup(
    watch: CgroupWatch, heard: Heard, root: Path
) -> None:
    watch.watch([], [(POD, EVENTS_FILE)])
    assert heard.change() == POD
    with (root / POD.relative / EVENTS_FILE).open("r+") as file:
        file.write("populated 0")
    assert heard.change() == POD


def test_plain_files_that_come_are_of_no_interest(
    watch: CgroupWatch, heard: Heard, root: Path
) -> None:
    watch.watch([OTHER])
    assert heard.change() == OTHER
    watch.watch([OTHER, KUBEPODS])
    assert heard.change() == KUBEPODS
    (root / "other/file").touch()
    (root / "kubepods/pod2").mkdir()
    assert heard.change() == KUBEPODS


def test_only_what_was_asked_for_last_is_watched(
    watch: CgroupWatch, heard: Heard, root: Path
) -> None:
    watch.watch([OTHER])
    assert heard.change() == OTHER
    watch.watch([KUBEPODS])
    assert heard.change() == KUBEPODS
    (root / "other/pod").mkdir()
    (root / "kubepods/pod2").mkdir()
    assert heard.change() == KUBEPODS


def test_watches_are_given_back_to_the_kernel(heard: Heard, root: Path) -> None:
    inotify = INotify()
    about = Path(f"/proc/self/fdinfo/{inotify.fileno()}")
    with heard.watch(root, lambda: inotify) as watch:
        watch.watch([KUBEPODS, OTHER])
        assert about.read_text().count("inotify wd:") == 2
        watch.watch([POD])
        assert about.read_text().count("inotify wd:") == 1


def test_what_is_asked_for_again_is_nothing_new(
    watch: CgroupWatch, heard: Heard, root: Path
) -> None:
    watch.watch([KUBEPODS])
    assert heard.change() == KUBEPODS
    watch.watch([KUBEPODS])
    assert heard.changes.empty()


def test_each_cgroup_that_was_not_watched_is_one_change(watch: CgroupWatch, heard: Heard) -> None:
    watch.watch([KUBEPODS, POD], [(POD, EVENTS_FILE)])
    assert [heard.change() for _ in range(2)] == [KUBEPODS, POD]
    assert heard.changes.empty()


def test_a_cgroup_that_was_made_again_is_found_and_watched(
    watch: CgroupWatch, heard: Heard, root: Path
) -> None:
    watch.watch([OTHER])
    assert heard.change() == OTHER
    (root / "other").rmdir()
    (root / "other").mkdir()
    watch.watch([OTHER])
    assert heard.change() == OTHER
    (root / "other/pod").mkdir()
    assert heard.change() == OTHER


def test_what_is_watched_already_is_not_added_again_but_where_a_cgroup_was_remade(
    heard: Heard, root: Path
) -> None:
    added = []

    class Counting(INotify):  # type: ignore[misc] # publishes no types
        def add_watch(self, path: str, mask: int) -> int:
            added.append(path.removeprefix(f"{root}/"))
            number: int = super().add_watch(path, mask)
            return number

    below = [(OTHER / "pod", EVENTS_FILE), (POD, EVENTS_FILE)]
    (root / "other/pod").mkdir()
    (root / "other/pod" / EVENTS_FILE).write_text("")
    with heard.watch(root, Counting) as watch:
        watch.watch([OTHER], below)
        assert [heard.change() for _ in range(3)] == [POD, OTHER, OTHER / "pod"]
        added.clear()

        watch.watch([OTHER], below, anew=False)
        assert added == []

        shutil.rmtree(root / "other/pod")
        assert heard.change() == OTHER
        (root / "other/pod").mkdir()
        assert heard.change() == OTHER
        (root / "other/pod" / EVENTS_FILE).write_text("")
        watch.watch([OTHER], below, anew=False)
        assert added == [f"other/pod/{EVENTS_FILE}"]
        while heard.change() != OTHER / "pod":
            pass
        (root / "other/pod" / EVENTS_FILE).write_text("populated 1\n")
        assert heard.change() == OTHER / "pod"


def test_a_cgroup_that_has_vanished_is_no_trouble(watch: CgroupWatch, heard: Heard) -> None:
    watch.watch([CgroupPath("gone"), KUBEPODS], [(CgroupPath("gone"), EVENTS_FILE)])
    assert heard.change() == KUBEPODS
    assert watch.problem == ""
    assert heard.troubles.empty()


def test_a_symbolic_link_is_not_followed(watch: CgroupWatch, heard: Heard, root: Path) -> None:
    (root / "link").symlink_to("other")
    watch.watch([CgroupPath("link")])
    assert "ENOTDIR" in heard.trouble()


class Scarce(INotify):  # type: ignore[misc] # publishes no types
    """An instance with as many watches as the kernel has left."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left
        self.used: set[int] = set()

    def add_watch(self, path: str, mask: int) -> int:
        number: int = super().add_watch(path, mask)
        if number not in self.used and len(self.used) == self.left:
            super().rm_watch(number)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.used.add(number)
        return number


def test_too_few_watches_are_told_once_with_a_cure_and_the_others_work(
    heard: Heard, root: Path
) -> None:
    scarce = Scarce(1)
    with heard.watch(root, lambda: scarce) as watch:
        watch.watch([KUBEPODS, OTHER])
        assert "ENOSPC" in watch.problem
        assert "max_user_watches" in heard.trouble()
        assert heard.change() == EVERYTHING
        watch.watch([KUBEPODS, OTHER])
        assert heard.troubles.empty()
        (root / "kubepods/pod2").mkdir()
        assert heard.change() == KUBEPODS
        scarce.left = 2
        watch.watch([KUBEPODS, OTHER])
        assert watch.problem == ""
        assert heard.change() == OTHER


def test_without_an_instance_it_is_degraded_until_there_is_one(heard: Heard, root: Path) -> None:
    answers: list[Inotify | OSError] = [OSError(errno.EMFILE, "Too many open files"), INotify()]

    def opened() -> Inotify:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with heard.watch(root, opened) as watch:
        watch.watch([KUBEPODS])
        assert "max_user_instances" in heard.trouble()
        assert heard.change() == EVERYTHING
        watch.watch([KUBEPODS])
        assert watch.problem == ""
        assert heard.change() == KUBEPODS
        (root / "kubepods/pod2").mkdir()
        assert heard.change() == KUBEPODS


def test_without_a_thread_it_is_degraded_until_one_may_begin(
    heard: Heard, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with heard.watch(root) as watch:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            watch.watch([KUBEPODS])
        assert "raise pids.max of numalet's own cgroup" in heard.trouble()
        assert heard.change() == EVERYTHING
        watch.watch([KUBEPODS])
        assert watch.problem == ""
        assert heard.change() == KUBEPODS


def test_lost_events_are_told_as_a_change_of_everything(heard: Heard, root: Path) -> None:
    limit = int(QUEUE_LIMIT.read_text())
    if limit > 100_000:
        pytest.skip(f"{QUEUE_LIMIT} is {limit}: too many events to make")
    busy, go_on = threading.Event(), threading.Event()

    def change(path: CgroupPath) -> None:
        heard.changes.put(path)
        if threading.current_thread().name == "cgroups":
            busy.set()
            go_on.wait()

    watch = CgroupWatch(root, on_change=change, on_degraded=heard.troubles.put)
    try:
        watch.watch([KUBEPODS])
        pod = root / "kubepods/pod2"
        pod.mkdir()
        assert busy.wait(PATIENCE_S)
        for _ in range(limit // 2 + 2):
            pod.rmdir()
            pod.mkdir()
        go_on.set()
        assert "max_queued_events" in heard.trouble()
        assert [heard.change() for _ in range(3)] == [KUBEPODS, KUBEPODS, EVERYTHING]
        assert watch.problem == "", "nothing is wrong once everything has been looked at"
    finally:
        go_on.set()
        watch.close()


def test_it_ends_at_once_and_gives_everything_back(heard: Heard, root: Path) -> None:
    gc.collect()  # so that nothing of an earlier test goes meanwhile
    before = list(DESCRIPTORS.iterdir()), threading.active_count()
    with heard.watch(root) as watch:
        watch.watch([KUBEPODS, OTHER])
        begin = time.monotonic()
        watch.close()
        assert time.monotonic() - begin < 1
    assert (list(DESCRIPTORS.iterdir()), threading.active_count()) == before


def test_after_the_end_nothing_is_watched(watch: CgroupWatch, heard: Heard) -> None:
    watch.close()
    watch.watch([KUBEPODS])
    assert heard.changes.empty()


PATHS = [CgroupPath(name) for name in "abcd"]
LAST = CgroupPath("last")


@settings(deadline=None, max_examples=25)
@given(asked=st.lists(st.sets(st.sampled_from(PATHS)), min_size=1, max_size=5), anew=st.booleans())
def test_exactly_what_was_asked_for_last_is_told(
    asked: list[set[CgroupPath]],
    anew: bool,  # noqa: FBT001 - hypothesis gives it by name
) -> None:
    heard = Heard()
    with scratch_folder() as folder, heard.watch(Path(folder)) as watch:
        for path in (*PATHS, LAST):
            (Path(folder) / path.relative).mkdir()
        for paths in asked:
            watch.watch([*paths, LAST], anew=anew)
        while not heard.changes.empty():
            heard.change()
        for path in (*PATHS, LAST):
            (Path(folder) / path.relative / "pod").mkdir()
        told = set()
        while (path := heard.change()) != LAST:
            told.add(path)
    assert told == asked[-1]
