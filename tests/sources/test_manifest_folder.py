"""A watched folder: every change becomes events, and a mistake never loses a pod."""

import os
import queue
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.pods import Pod, PodUID
from agent.ports import Event, InputRejected, PodChanged, PodGone, PodsListed, SourceState
from agent.sources.manifests import ManifestFolder, manifest_files, read_file
from agent.sources.pod_model import stable_uid

PATIENCE_S = 10.0
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - {name: main, resources: {limits: {cpu: CPU, memory: 1Gi}}}
"""


def pod_text(name: str = "db", cpu: int = 2) -> str:
    return POD.replace("NAME", name).replace("CPU", str(cpu))


class Watched:
    """A folder with the source on it, looked at by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: list[Event] = []
        self.source = ManifestFolder(folder, self.events.append)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def after_one_look(self) -> list[str]:
        self.source.look()
        told = [_told(event) for event in self.events]
        self.events.clear()
        return told

    def settled(self) -> list[str]:
        """Return what is told of changes: the first look sees them, the second believes them."""
        assert self.after_one_look() == []
        return self.after_one_look()


def _told(event: Event) -> str:
    match event:
        case PodsListed(pods):
            return f"listed {' '.join(pod.name for pod in pods)}".rstrip()
        case PodChanged(pod):
            return f"changed {pod.name} {pod.app_containers[0].resources.limits['cpu']}"
        case PodGone(uid):
            names = {stable_uid("default", name): name for name in ("db", "a", "b", "c")}
            return f"gone {names[uid]}"
        case InputRejected(where, reason):
            return f"rejected {Path(where).name}" if reason else f"cleared {Path(where).name}"
        case SourceState(healthy, _):
            return "healthy" if healthy else "unhealthy"
        case _:
            return repr(event)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_the_first_look_lists_everything_and_what_is_wrong(watched: Watched) -> None:
    watched.write("b.yaml", pod_text("b"))
    watched.write("a.yaml", pod_text("a"))
    watched.write("c.yaml", "kind: Pod\n")

    assert watched.after_one_look() == ["rejected c.yaml:1", "listed a b"]
    assert watched.settled() == []


def test_an_empty_folder_is_a_list_too(watched: Watched) -> None:
    assert watched.after_one_look() == ["listed"]


def test_new_edited_and_removed_files_are_noticed(watched: Watched) -> None:
    watched.after_one_look()

    watched.write("db.yaml", pod_text())
    assert watched.settled() == ["changed db 2000"]
    watched.write("db.yaml", pod_text(cpu=4))
    assert watched.settled() == ["changed db 4000"]
    (watched.folder / "db.yaml").unlink()
    assert watched.settled() == ["gone db"]


def test_a_file_that_is_renamed_over_is_noticed_even_with_the_old_size_and_time(
    watched: Watched,
) -> None:
    watched.write("db.yaml", pod_text(cpu=2))
    watched.after_one_look()
    before = (watched.folder / "db.yaml").stat()

    watched.write("new", pod_text(cpu=4))
    os.utime(watched.folder / "new", ns=(before.st_atime_ns, before.st_mtime_ns))
    (watched.folder / "new").rename(watched.folder / "db.yaml")

    assert watched.settled() == ["changed db 4000"]


def test_a_link_that_is_turned_to_other_files_is_noticed(watched: Watched, tmp_path: Path) -> None:
    # the way in which Kubernetes updates the files of a mounted ConfigMap
    for version, cpu in (("..1", 2), ("..2", 4)):
        (tmp_path / version).mkdir()
        watched.write(f"{version}/db.yaml", pod_text(cpu=cpu))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "db.yaml").symlink_to("..data/db.yaml")
    assert watched.after_one_look() == ["listed db"]

    (tmp_path / "..new").symlink_to("..2")
    (tmp_path / "..new").rename(tmp_path / "..data")

    assert watched.settled() == ["changed db 4000"]


def test_what_changes_no_pod_is_no_event(watched: Watched) -> None:
    watched.write("db.yaml", pod_text())
    watched.after_one_look()

    watched.write("db.yaml", "# a comment\n" + pod_text())
    assert watched.settled() == []
    (watched.folder / "db.yaml").touch()
    assert watched.settled() == []
    (watched.folder / "db.yaml").rename(watched.folder / "renamed.yaml")
    assert watched.settled() == []


def test_a_file_that_still_changes_is_left_until_it_settles(watched: Watched) -> None:
    watched.write("db.yaml", pod_text())
    watched.after_one_look()

    for part in ("", POD[:40], POD[:90]):
        watched.write("db.yaml", part)
        assert watched.after_one_look() == []
    watched.write("db.yaml", pod_text(cpu=4))

    assert watched.settled() == ["changed db 4000"]


def test_an_editor_that_moves_the_old_file_away_first_removes_no_pod(watched: Watched) -> None:
    watched.write("db.yaml", pod_text())
    watched.after_one_look()

    (watched.folder / "db.yaml").rename(watched.folder / "db.yaml~")
    assert watched.after_one_look() == []
    watched.write("db.yaml", pod_text(cpu=4))

    assert watched.settled() == ["changed db 4000"]


@pytest.mark.parametrize(
    ("text", "where"),
    [("", "db.yaml"), ("a: [\n", "db.yaml:2"), (pod_text(cpu=-1), "db.yaml:6")],
)
def test_a_file_that_becomes_bad_keeps_its_pods_until_it_is_good(
    watched: Watched, text: str, where: str
) -> None:
    watched.write("db.yaml", pod_text("a") + "---\n" + pod_text("b"))
    watched.after_one_look()

    watched.write("db.yaml", text)
    assert watched.settled() == [f"rejected {where}"]
    watched.write("db.yaml", pod_text("a", cpu=4))

    assert watched.settled() == ["gone b", "changed a 4000", f"cleared {where}"]


def test_the_good_part_of_a_bad_file_counts(watched: Watched) -> None:
    watched.write("db.yaml", pod_text("a") + "---\n" + pod_text("b"))
    watched.after_one_look()

    watched.write("db.yaml", pod_text("a", cpu=4) + "---\n" + pod_text("b", cpu=-1))

    assert watched.settled() == ["changed a 4000", "rejected db.yaml:13"]


def test_a_removed_bad_file_takes_its_pods_and_its_complaint_along(watched: Watched) -> None:
    watched.write("db.yaml", pod_text())
    watched.after_one_look()
    watched.write("db.yaml", "a: [\n")
    watched.settled()

    (watched.folder / "db.yaml").unlink()

    assert watched.settled() == ["gone db", "cleared db.yaml:2"]


def test_when_the_first_of_two_equal_names_goes_the_second_counts(watched: Watched) -> None:
    watched.write("a.yaml", pod_text("db", cpu=1))
    watched.write("b.yaml", pod_text("db", cpu=3))
    assert watched.after_one_look() == ["rejected b.yaml:1", "listed db"]

    (watched.folder / "a.yaml").unlink()

    assert watched.settled() == ["changed db 3000", "cleared b.yaml:1", "listed db"]


def test_a_folder_that_cannot_be_read_loses_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "pods"
    watched = Watched(folder)
    assert watched.after_one_look() == ["unhealthy"]
    assert watched.after_one_look() == []

    folder.mkdir()
    watched.write("db.yaml", pod_text())
    assert watched.after_one_look() == ["healthy", "listed db"]
    folder.rename(tmp_path / "elsewhere")
    assert watched.after_one_look() == ["unhealthy"]
    (tmp_path / "elsewhere").rename(folder)

    assert watched.after_one_look() == ["healthy"]


CONTENTS = st.none() | st.lists(
    st.builds(pod_text, st.sampled_from("abc"), st.integers(1, 2)), min_size=1, max_size=3
).map("---\n".join)


class Follower:
    """Who follows the events of a source, and knows nothing else."""

    def __init__(self) -> None:
        self.pods: dict[PodUID, Pod] = {}
        self.complaints: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case PodsListed(pods):
                self.pods = {pod.uid: pod for pod in pods}
            case PodChanged(pod):
                self.pods[pod.uid] = pod
            case PodGone(uid):
                del self.pods[uid]
            case InputRejected(where, ""):
                del self.complaints[where]
            case InputRejected(where, reason):
                self.complaints[where] = reason


@given(
    steps=st.lists(st.tuples(st.sampled_from(["1.yaml", "2.yaml"]), CONTENTS, st.booleans())),
)
def test_who_follows_the_events_knows_what_the_folder_says(
    steps: list[tuple[str, str | None, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, follower = Path(name), Follower()
        source = ManifestFolder(folder, follower)
        for file, content, is_looked_at in steps:
            write(folder / file, content)
            if is_looked_at:
                source.look()
        source.look()
        source.look()

        found = [placed for file in manifest_files(folder) for placed in read_file(file).pods]
        pods = follower.pods.values()
        assert {pod.uid for pod in pods} == {pod.uid for _, pod in found}
        # Of each pod one counts, and all others are complained of.
        counting = [(where, pod) for where, pod in found if where not in follower.complaints]
        assert sorted(pod.uid for _, pod in counting) == sorted(follower.pods)
        assert all(pod in pods for _, pod in counting)
        assert follower.complaints.keys() <= {where for where, _ in found}


def write(file: Path, content: str | None) -> None:
    if content is None:
        file.unlink(missing_ok=True)
    else:
        file.write_text(content)


def test_the_thread_tells_the_list_then_the_changes_and_ends_when_closed(tmp_path: Path) -> None:
    events: queue.Queue[Event] = queue.Queue()
    source = ManifestFolder(tmp_path, events.put, interval_s=0.01)

    source.start()
    try:
        assert _told(events.get(timeout=PATIENCE_S)) == "listed"
        (tmp_path / "db.yaml").write_text(pod_text())
        assert _told(events.get(timeout=PATIENCE_S)) == "changed db 2000"
    finally:
        source.close()
    (tmp_path / "db.yaml").unlink()

    assert events.empty()
    assert "manifests" not in {thread.name for thread in threading.enumerate()}


def test_a_source_that_never_started_can_be_closed(tmp_path: Path) -> None:
    ManifestFolder(tmp_path, _refuse("no event was expected")).close()


def _refuse(why: str) -> Callable[[Event], None]:
    def post(event: Event) -> None:
        raise AssertionError(f"{why}: {event}")

    return post
