"""The simulated kernel as plain files: read by a person, and edited by one."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet
from agent.errors import EnvironmentProblem
from agent.ports import GONE
from agent.simulation.kernel import SimulatedKernel
from tests.scratch import scratch_folder

from .rig import two_nodes

POD = CgroupPath("kubepods.slice") / "kubepods-pod1_2.slice"
APP = POD / "app.scope"


@pytest.fixture
def app(kernel: SimulatedKernel) -> SimulatedKernel:
    kernel.make(APP)
    kernel.writes.clear()
    return kernel


def file(kernel: SimulatedKernel, path: CgroupPath, name: str) -> Path:
    return kernel.root / path.relative / name


def test_every_control_file_can_be_read_in_the_mirror(app: SimulatedKernel) -> None:
    pid = app.add_task(APP)
    app.write(APP, "cpuset.cpus", "2,3")
    shown = {f.name: f.read_text() for f in file(app, APP, ".").iterdir()}
    assert shown == {
        "cgroup.controllers": "cpuset cpu memory\n",
        "cgroup.events": "populated 1\nfrozen 0\n",
        "cgroup.procs": f"{pid}\n",
        "cgroup.subtree_control": "",
        "cgroup.type": "domain\n",
        "cpu.max": "max 100000\n",
        "cpu.weight": "100\n",
        "cpuset.cpus": "2-3\n",
        "cpuset.cpus.effective": "2-3\n",
        "cpuset.mems": "",
        "cpuset.mems.effective": "0-1\n",
        "memory.max": "max\n",
    }


def test_what_follows_from_a_write_is_shown_too(app: SimulatedKernel) -> None:
    app.write(POD, "cpuset.cpus", "4-5")
    assert file(app, APP, "cpuset.cpus.effective").read_text() == "4-5\n"
    app.set_online(CPUSet(range(5)))
    assert file(app, APP, "cpuset.cpus.effective").read_text() == "4\n"
    pid = app.add_task(APP)
    assert file(app, POD, "cgroup.events").read_text() == "populated 1\nfrozen 0\n"
    app.kill(pid)
    assert file(app, POD, "cgroup.events").read_text() == "populated 0\nfrozen 0\n"


def test_files_of_a_disabled_controller_and_removed_cgroups_vanish(app: SimulatedKernel) -> None:
    app.write(POD, "cgroup.subtree_control", "-cpuset")
    assert not file(app, APP, "cpuset.cpus").exists()
    assert file(app, APP, "cpu.max").exists()
    app.remove(APP)
    assert not file(app, APP, ".").exists()


def test_a_hand_edit_becomes_the_kernels_value(app: SimulatedKernel) -> None:
    file(app, APP, "cpuset.cpus").write_text("4,5\n")
    assert app.read(APP, "cpuset.cpus") == ""
    assert app.absorb() == [(APP, "cpuset.cpus", "4,5\n")]
    assert app.read(APP, "cpuset.cpus") == "4-5"
    assert file(app, APP, "cpuset.cpus").read_text() == "4-5\n"
    assert file(app, APP, "cpuset.cpus.effective").read_text() == "4-5\n"
    assert app.writes == []
    assert app.absorb() == []


def test_several_edits_count_from_the_top_down(app: SimulatedKernel) -> None:
    file(app, APP, "cpuset.cpus").write_text("4-7\n")
    file(app, POD, "cpuset.cpus").write_text("6-7\n")
    assert [path for path, _, _ in app.absorb()] == [POD, APP]
    assert app.read(APP, "cpuset.cpus.effective") == "6-7"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cpuset.cpus", "9\n"),
        ("cpuset.cpus", "rubbish"),
        ("cpuset.cpus", ""),
        ("cpuset.cpus", "\n"),
        ("cpuset.cpus.effective", "0\n"),
        ("cgroup.type", "threaded\n"),
        ("cgroup.procs", "77\n"),
    ],
)
def test_a_hand_edit_that_the_kernel_refuses_is_put_back(
    app: SimulatedKernel, name: str, text: str
) -> None:
    app.write(APP, "cpuset.cpus", "1")
    app.add_task(APP)
    before = file(app, APP, name).read_text()
    file(app, APP, name).write_text(text)
    assert app.absorb() == []
    assert file(app, APP, name).read_text() == before


def test_an_edit_that_is_no_text_is_put_back(app: SimulatedKernel) -> None:
    file(app, APP, "cpu.max").write_bytes(b"\xff\xfe")
    assert app.absorb() == []
    assert file(app, APP, "cpu.max").read_text() == "max 100000\n"


def test_removed_files_and_directories_are_put_back(app: SimulatedKernel) -> None:
    file(app, APP, "cpu.max").unlink()
    assert app.absorb() == []
    assert file(app, APP, "cpu.max").read_text() == "max 100000\n"
    shutil.rmtree(file(app, POD, "."))
    assert app.absorb() == []
    assert file(app, APP, "cpu.max").read_text() == "max 100000\n"


def in_place_of(path: Path) -> Path:
    """Remove a file or directory, and return where it was."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return path


ODD_EDITS: dict[str, Callable[[Path], object]] = {
    "a directory for a file": lambda pod: in_place_of(pod / "cpuset.cpus").mkdir(),
    "a directory with files for a file": lambda pod: (
        in_place_of(pod / "cpuset.cpus") / "below"
    ).mkdir(parents=True),
    "a file for a directory": lambda pod: in_place_of(pod).write_text("0-1"),
    "a link to itself": lambda pod: in_place_of(pod / "cpu.max").symlink_to("cpu.max"),
    "a link to elsewhere": lambda pod: in_place_of(pod / "cpu.max").symlink_to("/etc/hostname"),
    "a link that leads nowhere": lambda pod: in_place_of(pod / "cpu.max").symlink_to("nowhere"),
    "a directory that is a link": lambda pod: in_place_of(pod).symlink_to("/"),
    "a pipe for a file": lambda pod: os.mkfifo(in_place_of(pod / "cpuset.mems")),
    "a file that is removed": lambda pod: in_place_of(pod / "cgroup.procs"),
    "a directory that is removed": in_place_of,
    "everything removed": lambda pod: in_place_of(pod.parents[1]),
    "a file for everything": lambda pod: in_place_of(pod.parents[1]).write_text(""),
    "a number without end": lambda pod: (pod / "cpuset.cpus").write_text("9" * 5000),
    "a period without end": lambda pod: (pod / "cpu.max").write_text("max " + "9" * 5000),
    "a pid without end": lambda pod: (pod / "cgroup.procs").write_text("1" * 5000),
    "a megabyte": lambda pod: (pod / "memory.max").write_bytes(b"1" * (1 << 20)),
    "a file that nobody may read": lambda pod: (pod / "cpu.weight").chmod(0),
    "a directory that nobody may enter": lambda pod: pod.chmod(0),
}


def shown(kernel: SimulatedKernel) -> dict[Path, str]:
    return {
        path.relative_to(kernel.root): path.read_text()
        for path in kernel.root.rglob("*")
        if not path.is_dir() or path.is_symlink()
    }


@pytest.mark.parametrize("edit", ODD_EDITS.values(), ids=ODD_EDITS.keys())
def test_an_odd_edit_is_survived_and_put_back(
    app: SimulatedKernel, edit: Callable[[Path], object]
) -> None:
    before = shown(app)
    edit(file(app, POD, "."))
    assert app.absorb() == []
    assert shown(app) == before
    assert app.absorb() == []


@given(
    name=st.sampled_from(
        [
            *("cpuset.cpus", "cpuset.mems", "cpu.max", "cpu.weight", "memory.max"),
            *("cgroup.procs", "cgroup.subtree_control", "cgroup.type", "cpuset.cpus.effective"),
        ]
    ),
    text=st.binary(max_size=40)
    | st.text("0123456789,-:/ +cpusetmax\n", max_size=40).map(str.encode),
)
def test_whatever_is_written_the_mirror_shows_what_the_kernel_says(name: str, text: bytes) -> None:
    with scratch_folder() as folder:
        kernel = SimulatedKernel(two_nodes(), Path(folder) / "cgroup")
        kernel.make(APP)
        file(kernel, POD, name).write_bytes(text)
        kernel.absorb()
        for path in (POD, APP):
            for known in file(kernel, path, ".").iterdir():
                said = kernel.read(path, known.name)
                assert known.is_dir() or known.read_text() == (f"{said}\n" if said else "")


def test_nothing_is_written_or_removed_behind_a_link(app: SimulatedKernel, tmp_path: Path) -> None:
    inside, outside = file(app, POD, "."), tmp_path / "outside"
    (outside / APP.name).mkdir(parents=True)
    (outside / "cpuset.cpus").write_text("precious")

    in_place_of(inside).symlink_to(outside)
    app.write(APP, "cpuset.cpus", "2-3")
    assert file(app, APP, "cpuset.cpus").read_text() == "2-3\n"
    in_place_of(inside).symlink_to(outside)
    app.remove(APP)
    app.absorb()

    assert {path.name for path in outside.iterdir()} == {APP.name, "cpuset.cpus"}
    assert (outside / "cpuset.cpus").read_text() == "precious"


def test_a_disk_that_refuses_for_a_while_stops_nobody_and_is_caught_up_with(tmp_path: Path) -> None:
    kernel = SimulatedKernel(two_nodes(), tmp_path / "x" / "cgroup")
    kernel.make(APP)
    in_place_of(tmp_path / "x").write_text("")
    kernel.write(APP, "cpuset.cpus", "2-3")
    assert kernel.absorb() == []
    assert kernel.read(APP, "cpuset.cpus") == "2-3"

    (tmp_path / "x").unlink()

    assert kernel.absorb() == []
    assert file(kernel, APP, "cpuset.cpus").read_text() == "2-3\n"
    assert file(kernel, APP, "cpu.max").read_text() == "max 100000\n"


def test_an_edit_of_a_file_that_another_edit_takes_away_is_dropped(app: SimulatedKernel) -> None:
    file(app, POD, "cgroup.subtree_control").write_text("-cpuset\n")
    file(app, APP, "cpuset.cpus").write_text("4\n")
    assert app.absorb() == [(POD, "cgroup.subtree_control", "-cpuset\n")]
    assert app.read(APP, "cpuset.cpus") is GONE
    assert not file(app, APP, "cpuset.cpus").exists()


def test_a_process_is_moved_by_hand(app: SimulatedKernel) -> None:
    app.make(POD / "b.scope")
    pid = app.add_task(APP)
    file(app, POD / "b.scope", "cgroup.procs").write_text(f"{pid}\n")
    assert app.absorb() == [(POD / "b.scope", "cgroup.procs", f"{pid}\n")]
    assert file(app, APP, "cgroup.procs").read_text() == ""


def test_a_folder_that_cannot_be_written_is_an_environment_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match="needs a folder that it can write"):
        SimulatedKernel(two_nodes(), tmp_path / "file")
