import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent import __version__
from agent.core.cpuset import CPUSet
from agent.core.pods import Container, Devices, Pod, PodUID
from agent.core.state import NodeState
from agent.core.topology import Core, NodeTopology, NumaNode
from agent.node.checkpoint import (
    COPIES,
    KEPT_ASIDE,
    CheckpointNotSaved,
    CheckpointStore,
    topology_fingerprint,
)
from agent.node.checkpoint_format import Renderer, Writer, _Fragments, frame
from agent.ports import Remembered
from tests.core.state_strategies import affinities, firsts, names, states, uids
from tests.node.fragile_disks import (
    NEW,
    OLD,
    UID,
    Clock,
    RefusingDisk,
    UnsyncedDisk,
    names_in,
    store,
)


def test_an_empty_folder_has_no_state_and_nothing_to_say(tmp_path: Path) -> None:
    loaded = store(tmp_path).load()
    assert (loaded.remembered, loaded.notes, loaded.newer_version) == (None, (), False)


def test_what_is_saved_is_loaded_with_who_wrote_it_and_when(tmp_path: Path) -> None:
    assert CheckpointStore(tmp_path, Clock(), boot_id="b", topology="t").save(OLD)

    loaded = CheckpointStore(tmp_path, Clock()).load()

    assert loaded.remembered == OLD
    assert loaded.generation == 1
    assert loaded.written_at_s == Clock().now_s()
    assert loaded.writer == Writer(agent_version=__version__, boot_id="b", topology="t")
    assert loaded.notes == ()


@settings(deadline=None)  # files: the machine's load decides
@given(
    state=states(st.dictionaries(names, affinities, max_size=2), st.none() | firsts),
    pods=st.dictionaries(uids, st.builds(Pod, uid=uids, name=names), max_size=2),
)
def test_any_state_is_loaded_as_it_was_saved(state: NodeState, pods: dict[PodUID, Pod]) -> None:
    with TemporaryDirectory() as folder:
        remembered = Remembered(state=state, pods=pods)
        store(Path(folder)).save(remembered)
        assert store(Path(folder)).load().remembered == remembered


def test_where_the_devices_of_a_pod_are_is_kept(tmp_path: Path) -> None:
    devices = Devices(nodes={"app": {"nvidia.com/gpu": ((0,), (1, 3)), "a/b": ()}}, in_time=False)
    pod = replace(
        OLD.pods[UID],
        devices=devices,
        app_containers=(Container(name="app", extended=("a/b", "nvidia.com/gpu")),),
    )
    store(tmp_path).save(replace(OLD, pods={UID: pod}))
    assert store(tmp_path).load().remembered == replace(OLD, pods={UID: pod})


def test_of_annotations_only_those_are_kept_that_decide_something(tmp_path: Path) -> None:
    kept = {"numalet.io/resources": "{}", "kubernetes.io/config.hash": "abc"}
    pod = replace(OLD.pods[UID], annotations={**kept, "other": "x" * 9999}, labels={"app": "db"})
    store(tmp_path).save(replace(OLD, pods={UID: pod}))
    assert store(tmp_path).load().remembered == replace(
        OLD, pods={UID: replace(pod, annotations=kept, labels={})}
    )


def test_what_changes_with_every_container_that_starts_or_ends_is_not_kept(
    tmp_path: Path,
) -> None:
    pod = OLD.pods[UID]
    lively = replace(pod, container_ids={"1f46": "db"}, ended_init=frozenset({"load"}))
    saved = store(tmp_path)
    assert saved.save(replace(OLD, pods={UID: pod}))
    assert not saved.save(replace(OLD, pods={UID: lively}))
    assert store(tmp_path).load().remembered == replace(OLD, pods={UID: pod})


def test_both_copies_are_plain_json_on_one_line(tmp_path: Path) -> None:
    store(tmp_path).save(OLD)
    texts = [(tmp_path / name).read_text() for name in COPIES]
    assert texts[0] == texts[1]
    assert texts[0].count("\n") == 1
    payload = json.loads(texts[0])["payload"]
    assert payload["entries"][UID]["cpus"] == {"db": "2-3", "side": "4-5"}
    assert payload["entries"][UID]["memory_pool"] == [["memory", "0-1", 2**64 - 1]]


def test_the_copies_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    store(tmp_path).save(OLD)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in COPIES] == [0o600, 0o600]


def test_the_same_state_is_not_written_twice_not_even_after_a_restart(tmp_path: Path) -> None:
    first = store(tmp_path)
    first.save(OLD)
    written = [(tmp_path / name).stat().st_mtime_ns for name in COPIES]

    assert not first.save(OLD)
    assert not store(tmp_path, RefusingDisk(0, errno.EIO)).save(OLD)

    assert [(tmp_path / name).stat().st_mtime_ns for name in COPIES] == written
    assert store(tmp_path).load().generation == 1


def test_after_another_boot_the_same_state_is_written_again(tmp_path: Path) -> None:
    store(tmp_path).save(OLD)
    assert CheckpointStore(tmp_path, Clock(), boot_id="2", disk=UnsyncedDisk()).save(OLD)
    assert store(tmp_path).load().generation == 2


def test_a_pod_that_did_not_change_is_not_rendered_again() -> None:
    rendered: list[str] = []

    def render(value: tuple[str]) -> str:
        rendered.append(value[0])
        return f'"{value[0]}"'

    a, b, c = ("a",), ("b",), ("c",)
    fragments: _Fragments[str, tuple[str]] = _Fragments(render)

    assert fragments.join({"1": a, "2": b}) == '{"1":"a","2":"b"}'
    assert fragments.join({"1": a, "2": c}) == '{"1":"a","2":"c"}'
    assert fragments.join({"2": c}) == '{"2":"c"}'
    assert fragments.join({"2": c, "1": a}) == '{"2":"c","1":"a"}'

    assert rendered == ["a", "b", "c", "a"]


@settings(deadline=None)  # files: the machine's load decides
@given(data=st.data())
def test_a_copy_with_any_byte_changed_is_never_taken_for_whole(data: st.DataObject) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        store(folder).save(OLD)
        path = folder / data.draw(st.sampled_from(COPIES))
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        content[position] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)

        loaded = store(folder).load()

        assert loaded.remembered == OLD
        assert f"{path} is damaged (" in loaded.notes[0]
        assert loaded.notes[1] == "the other copy is whole (generation 1)"


@pytest.mark.parametrize("version", range(10))
def test_a_whole_copy_with_another_version_written_over_its_own_is_damaged_not_newer(
    tmp_path: Path, version: int
) -> None:
    store(tmp_path).save(OLD)
    path = tmp_path / COPIES[0]
    path.write_bytes(path.read_bytes().replace(b":1,", b":%d," % version, 1))

    loaded = store(tmp_path).load()

    assert loaded.remembered == OLD
    assert not loaded.newer_version
    assert bool(loaded.notes) == (version != 1)


@pytest.mark.parametrize("length", [0, 1, 12, 100, 500, -1])
def test_a_copy_that_was_cut_short_is_set_aside_unchanged(tmp_path: Path, length: int) -> None:
    store(tmp_path).save(OLD)
    path = tmp_path / COPIES[1]
    cut = path.read_bytes()[:length]
    path.write_bytes(cut)

    assert store(tmp_path).load().remembered == OLD

    aside = tmp_path / f"{COPIES[1]}.damaged-1800000000"
    assert aside.read_bytes() == cut
    assert names_in(tmp_path) == sorted([COPIES[0], aside.name])
    assert store(tmp_path).save(OLD)
    assert path.exists()


def test_a_copy_with_something_behind_it_counts_as_damaged(tmp_path: Path) -> None:
    store(tmp_path).save(OLD)
    with (tmp_path / COPIES[0]).open("ab") as file:
        file.write(b"\0")
    assert "is damaged (cut short or edited)" in store(tmp_path).load().notes[0]


def test_with_both_copies_damaged_there_is_no_state_and_the_next_one_is_saved(
    tmp_path: Path,
) -> None:
    store(tmp_path).save(OLD)
    for name in COPIES:
        (tmp_path / name).write_bytes(b"\xff")

    damaged = store(tmp_path)
    loaded = damaged.load()

    assert (loaded.remembered, loaded.newer_version) == (None, False)
    aside = [
        f"{tmp_path / name} is damaged (not UTF-8 text): set aside as {name}" for name in COPIES
    ]
    assert loaded.notes == (
        f"{aside[0]}.damaged-1800000000",
        f"{aside[1]}.damaged-1800000000",
        (
            "no whole copy is left: running pods keep what their cgroups say, "
            "the others are decided on anew"
        ),
    )
    assert damaged.save(NEW)
    assert store(tmp_path).load().remembered == NEW


def test_the_number_of_files_set_aside_is_bounded_and_the_latest_stay(tmp_path: Path) -> None:
    for i in range(KEPT_ASIDE + 3):
        (tmp_path / COPIES[0]).write_text(str(i))
        store(tmp_path).load()
    kept = [(tmp_path / name).read_text() for name in names_in(tmp_path)]
    assert kept == [str(i) for i in range(3, KEPT_ASIDE + 3)]


def test_a_damaged_copy_that_cannot_be_set_aside_is_reported_too(tmp_path: Path) -> None:
    (tmp_path / COPIES[0]).write_text("")
    loaded = store(tmp_path, RefusingDisk(0, errno.EROFS)).load()
    assert "could not be set aside: " in loaded.notes[0]
    assert "mount that file system read-write" in loaded.notes[0]


def test_a_copy_that_cannot_be_read_counts_as_damaged(tmp_path: Path) -> None:
    store(tmp_path).save(OLD)
    (tmp_path / COPIES[0]).unlink()
    (tmp_path / COPIES[0]).mkdir()
    loaded = store(tmp_path).load()
    assert loaded.remembered == OLD
    assert "Is a directory" in loaded.notes[0]


def test_the_copy_of_the_newest_generation_counts(tmp_path: Path) -> None:
    for name, remembered, generation in ((COPIES[0], NEW, 10), (COPIES[1], OLD, 9)):
        body = Renderer(Writer()).body(remembered)
        (tmp_path / name).write_bytes(frame(body, generation, 0.0))
    found = store(tmp_path)
    assert found.load().remembered == NEW
    assert found.save(NEW)
    assert store(tmp_path).load().generation == 11


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda body: body.replace('"default":"0-1,6-7"', '"default":"0-x"'), "default: "),
        (lambda body: body.replace('"default":"0-1,6-7"', '"default":3'), "default: "),
        (lambda body: body.replace('"boot_id":', '"boot":'), "boot_id: Field required"),
        (lambda body: body.replace('"assignments":1', '"assignments":"1"'), "memory.0.assignments"),
        (lambda body: body.replace('"kind":"init"', '"kind":"boss"'), "pods."),
    ],
)
def test_a_whole_file_that_says_nonsense_counts_as_damaged(
    tmp_path: Path, change: Callable[[str], str], where: str
) -> None:
    body = Renderer(Writer()).body(OLD)
    assert change(body) != body
    (tmp_path / COPIES[0]).write_bytes(frame(change(body), 1, 0.0))
    loaded = store(tmp_path).load()
    assert loaded.remembered is None
    assert f"is damaged ({where}" in loaded.notes[0]


def test_what_was_loaded_can_be_kept_before_it_is_replaced(tmp_path: Path) -> None:
    store(tmp_path).save(OLD)
    kept = (tmp_path / COPIES[0]).read_bytes()
    unbelieved = store(tmp_path)
    unbelieved.keep_loaded()  # nothing was loaded yet
    unbelieved.load()
    for _ in range(KEPT_ASIDE + 2):
        unbelieved.keep_loaded()
    unbelieved.save(NEW)
    aside = list(tmp_path.glob(f"{COPIES[0]}.unfit-*"))
    assert len(aside) == KEPT_ASIDE
    assert {path.read_bytes() for path in aside} == {kept}
    assert store(tmp_path).load().remembered == NEW


class TestNewerVersion:
    CONTENT = b'{"version":2,"blake3":"..."}'

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        store(tmp_path).save(OLD)
        (tmp_path / COPIES[0]).write_bytes(self.CONTENT)
        return tmp_path

    def test_it_is_reported_at_every_start_and_left_as_it_is(self, folder: Path) -> None:
        for _ in range(2):
            loaded = store(folder).load()
            assert loaded.newer_version
            assert loaded.remembered is None
            assert " ".join(loaded.notes) == (
                f"{folder / COPIES[0]} was written by a newer numalet (file version 2, this "
                "numalet reads up to 1): it stays as it is, and nothing is enforced; start the "
                "newer numalet again, or move the file away"
            )
        assert (folder / COPIES[0]).read_bytes() == self.CONTENT

    def test_the_first_save_sets_it_aside_unchanged(self, folder: Path) -> None:
        told_otherwise = store(folder)
        told_otherwise.load()

        assert told_otherwise.save(OLD)

        aside = folder / f"{COPIES[0]}.newer-1800000000"
        assert aside.read_bytes() == self.CONTENT
        loaded = store(folder).load()
        assert (loaded.remembered, loaded.newer_version) == (OLD, False)

    def test_a_save_that_cannot_set_it_aside_does_not_overwrite_it(self, folder: Path) -> None:
        with pytest.raises(CheckpointNotSaved):
            store(folder, RefusingDisk(0, errno.EIO)).save(NEW)
        assert (folder / COPIES[0]).read_bytes() == self.CONTENT


def test_the_fingerprint_of_a_machine_changes_with_its_cpus_and_not_with_its_memory() -> None:
    cores = tuple(Core(cpus=CPUSet([i]), node=0, socket=0, uncore=0) for i in range(2))
    machine = NodeTopology(nodes=(NumaNode(id=0, memory_bytes=1000),), cores=cores, socket_count=1)
    fingerprint = topology_fingerprint(machine)

    assert topology_fingerprint(replace(machine, cores=cores[::-1])) == fingerprint
    assert (
        topology_fingerprint(replace(machine, nodes=(NumaNode(id=0, memory_bytes=999),)))
        == fingerprint
    )
    assert topology_fingerprint(replace(machine, cores=cores[:1])) != fingerprint
