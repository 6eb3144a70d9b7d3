"""The simulated kernel as plain files: read by a person, and edited by one."""

import shutil
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet
from agent.errors import EnvironmentProblem
from agent.ports import GONE
from agent.simulation.kernel import SimulatedKernel

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
