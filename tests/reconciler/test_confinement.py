"""How soon new cgroups are confined is measured, and never told too short."""

import errno
from pathlib import Path

import pytest

from agent.confinement import CONTAINER, POD, Confinement
from agent.core.cgroups import CgroupPath
from agent.errors import CgroupError
from agent.measures import ConfinementReport
from agent.ports import Gone
from agent.simulation.clock import SimulatedClock
from agent.simulation.kernel import SimulatedKernel
from tests.reconciler.rig import two_sockets

PODS = CgroupPath("kubepods")
OLD, NEW = PODS / "podold", PODS / "podnew"
APP = NEW / "app"


class Node:
    """A node on which the agent has looked once; ``programs`` are the pids that run one."""

    def __init__(self, folder: Path) -> None:
        self.kernel = SimulatedKernel(two_sockets().topology, folder)
        self.clock = SimulatedClock()
        self.programs: set[int] = set()
        self.confinement = Confinement(
            self.kernel, self.clock.monotonic_s, self.programs.__contains__
        )
        self.kernel.make(OLD)
        self.look({OLD: POD})

    def look(self, kinds: dict[CgroupPath, str], *, everywhere: bool = True) -> None:
        self.confinement.begin(kinds, looked_at_all=everywhere)
        self.confinement.end(kinds)

    def report(self) -> ConfinementReport:
        return self.confinement.report()

    def told(self, kind: str) -> float:
        """Return the one window of a kind, in seconds."""
        windows = self.report().windows[kind]
        assert sum(windows.counts) == 1
        return windows.sum_s

    def found(self) -> dict[tuple[str, str], int]:
        return {key: number for key, number in self.report().found.items() if number}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_is_there_at_the_start_is_not_new(node: Node) -> None:
    assert node.found() == {}
    assert all(not any(windows.counts) for windows in node.report().windows.values())


def test_a_window_begins_when_the_watch_tells_that_a_cgroup_is_made(node: Node) -> None:
    node.clock.advance(5)
    node.kernel.make(NEW)
    node.confinement.made(NEW)
    node.clock.advance(0.02)
    node.look({OLD: POD, NEW: POD}, everywhere=False)
    assert node.told(POD) == pytest.approx(0.02)
    assert node.found() == {(POD, "nothing"): 1}


def test_what_no_watch_told_of_is_as_old_as_the_last_look_at_everything(node: Node) -> None:
    node.clock.advance(5)
    node.look({OLD: POD}, everywhere=False)
    node.clock.advance(1)
    node.kernel.make(NEW)
    node.look({OLD: POD, NEW: POD}, everywhere=False)
    assert node.told(POD) == pytest.approx(6)


def test_a_container_that_no_watch_told_of_is_as_old_as_its_pod_at_most(node: Node) -> None:
    node.clock.advance(5)
    node.kernel.make(APP)
    node.confinement.made(NEW)
    node.clock.advance(0.5)
    node.look({OLD: POD, NEW: POD, APP: CONTAINER}, everywhere=False)
    assert node.told(CONTAINER) == pytest.approx(0.5)


def test_the_window_stays_open_until_the_kernel_says_what_was_decided(node: Node) -> None:
    node.kernel.make(NEW)
    node.confinement.made(NEW)
    node.confinement.begin({OLD: POD, NEW: POD}, looked_at_all=True)
    node.confinement.end({OLD})
    node.clock.advance(3)
    node.look({OLD: POD, NEW: POD})
    assert node.told(POD) == pytest.approx(3)
    node.look({OLD: POD, NEW: POD})
    assert sum(node.found().values()) == 1


def test_a_container_that_is_named_later_was_not_confined_before(node: Node) -> None:
    node.kernel.make(APP)
    node.confinement.made(APP)
    node.look({OLD: POD, NEW: POD})
    node.clock.advance(2)
    node.look({OLD: POD, NEW: POD, APP: CONTAINER})
    assert node.told(CONTAINER) == pytest.approx(2)


def test_a_program_that_ran_before_is_counted_and_a_runtime_that_prepares_it_is_not(
    node: Node,
) -> None:
    node.kernel.make(APP)
    node.kernel.mkdir(NEW / "early")
    node.kernel.add_task(APP)
    node.programs.add(node.kernel.add_task(NEW / "early"))
    node.look({OLD: POD, NEW: POD, APP: CONTAINER, NEW / "early": CONTAINER})
    assert node.found() == {
        (POD, "running"): 1,
        (CONTAINER, "nothing"): 1,
        (CONTAINER, "running"): 1,
    }


def test_a_program_in_the_inner_cgroup_of_crun_counts_for_its_container(node: Node) -> None:
    node.kernel.mkdir(NEW)
    node.kernel.mkdir(APP)
    node.kernel.mkdir(APP / "container")
    node.programs.add(node.kernel.add_task(APP / "container"))
    node.look({OLD: POD, APP: CONTAINER})
    assert node.found() == {(CONTAINER, "running"): 1}


class OtherNamespace(SimulatedKernel):
    """Processes of another PID namespace are all shown as 0."""

    def read(self, path: CgroupPath, file: str) -> str:
        text = str(super().read(path, file))
        return "\n".join("0" for _ in text.split()) if file == "cgroup.procs" else text


def test_what_cannot_be_seen_is_not_called_nothing(tmp_path: Path) -> None:
    kernel = OtherNamespace(two_sockets().topology, tmp_path)
    confinement = Confinement(kernel, SimulatedClock().monotonic_s, bool)
    confinement.begin({}, looked_at_all=True)
    kernel.make(APP)
    kernel.add_task(APP)
    confinement.begin({APP: CONTAINER}, looked_at_all=True)
    assert confinement.report().found[CONTAINER, "unseen"] == 1


class Refusing(SimulatedKernel):
    """Nothing can be read once it is told so."""

    refuses = False

    def read(self, path: CgroupPath, file: str) -> str | Gone:
        if self.refuses:
            raise CgroupError(str(path), errno.EOPNOTSUPP, "read")
        return super().read(path, file)

    def identity(self, path: CgroupPath) -> int | Gone:
        if self.refuses:
            raise CgroupError(str(path), errno.EOPNOTSUPP, "look at")
        return super().identity(path)


def test_a_cgroup_that_cannot_be_read_is_no_reason_to_stop(tmp_path: Path) -> None:
    kernel = Refusing(two_sockets().topology, tmp_path)
    confinement = Confinement(kernel, SimulatedClock().monotonic_s, lambda _pid: True)
    confinement.begin({}, looked_at_all=True)
    kernel.refuses = True
    confinement.made(NEW)
    confinement.begin({APP: CONTAINER, OLD: POD}, looked_at_all=True)
    found = confinement.report().found
    assert (found[CONTAINER, "unseen"], found[POD, "unseen"]) == (1, 1)


def test_what_has_gone_is_forgotten(node: Node) -> None:
    for n in range(3):
        node.kernel.make(NEW)
        node.confinement.made(NEW)
        node.clock.advance(1)
        node.look({OLD: POD, NEW: POD})
        node.kernel.remove(NEW)
        node.look({OLD: POD})
        assert node.report().windows[POD].sum_s == pytest.approx(n + 1)
