"""Of several pods with one name or UID the one that was there first stays, whatever files come."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ports import InputRejected
from agent.sources.manifests import ManifestFolder, read_file

from .test_manifest_folder import CONTENTS, Follower, Watched, pod_text, write


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


@given(
    first=CONTENTS,
    steps=st.lists(st.tuples(st.sampled_from(["0.yaml", "2.yaml"]), CONTENTS), max_size=4),
)
def test_no_other_file_changes_a_pod_that_was_there_before(
    first: str | None, steps: list[tuple[str, str | None]]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, follower = Path(name), Follower()
        write(folder / "1.yaml", first)
        source = ManifestFolder(folder, follower)
        source.look()
        before = dict(follower.pods)
        for file, content in steps:
            write(folder / file, content)
            source.look()
            source.look()
            assert before.items() <= follower.pods.items()


@pytest.mark.parametrize("name", ["a.yaml", "c.yaml"])
def test_a_newcomer_with_the_name_of_a_running_pod_is_rejected_and_told_where_that_is(
    watched: Watched, name: str
) -> None:
    watched.write("b.yaml", pod_text("db", cpu=2))
    watched.after_one_look()

    watched.write(name, pod_text("db", cpu=3))
    watched.source.look()
    watched.source.look()

    assert watched.events == [
        InputRejected(
            f"{watched.folder}/{name}:1",
            f"pod default/db stands in {watched.folder}/b.yaml:1 already, and that one stays:"
            " rename or remove one of the two",
        )
    ]


def test_a_newcomer_with_the_uid_of_a_running_pod_is_rejected_too(watched: Watched) -> None:
    watched.write("b.yaml", pod_text("b").replace("name: b", "name: b, uid: u-1"))
    watched.after_one_look()

    watched.write("a.yaml", pod_text("a").replace("name: a", "name: a, uid: u-1"))

    assert watched.settled() == ["rejected a.yaml:1"]


def test_a_pod_stays_when_its_file_gets_another_name_beside_a_newcomer(watched: Watched) -> None:
    watched.write("b.yaml", pod_text("db", cpu=2))
    watched.after_one_look()
    watched.write("a.yaml", pod_text("db", cpu=3))
    assert watched.settled() == ["rejected a.yaml:1"]

    (watched.folder / "b.yaml").rename(watched.folder / "c.yaml")
    watched.source.look()
    watched.source.look()

    (now,) = watched.events
    assert isinstance(now, InputRejected)
    assert "c.yaml:1 already" in now.reason


def test_a_running_pod_may_be_edited_in_its_own_file_beside_a_copy_of_what_it_was(
    watched: Watched,
) -> None:
    watched.write("b.yaml", pod_text("db", cpu=2))
    watched.after_one_look()

    watched.write("a.yaml", pod_text("db", cpu=2))
    watched.write("b.yaml", pod_text("db", cpu=4))

    assert watched.settled() == ["changed db 4000", "rejected a.yaml:1"]


def test_after_a_restart_the_file_that_says_what_runs_counts(tmp_path: Path) -> None:
    for name, cpu in (("a.yaml", 3), ("b.yaml", 2)):
        (tmp_path / name).write_text(pod_text("db", cpu=cpu))
    (_, running), *_ = read_file(tmp_path / "b.yaml").pods
    follower = Follower()

    ManifestFolder(tmp_path, follower, running={running.uid: running}).look()

    assert list(follower.pods.values()) == [running]
    assert list(follower.complaints) == [f"{tmp_path}/a.yaml:1"]


def test_after_a_restart_the_first_file_counts_where_none_says_what_runs(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(pod_text("db", cpu=5))
    (_, running), *_ = read_file(tmp_path / "a.yaml").pods
    for name, cpu in (("a.yaml", 3), ("b.yaml", 2)):
        (tmp_path / name).write_text(pod_text("db", cpu=cpu))
    follower = Follower()

    ManifestFolder(tmp_path, follower, running={running.uid: running}).look()

    assert list(follower.complaints) == [f"{tmp_path}/b.yaml:1"]
