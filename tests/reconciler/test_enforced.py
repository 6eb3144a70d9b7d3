"""Which pods are enforced, and since when the node is ready: what is told of neither is a guess."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.errors import CgroupError
from agent.ports import CgroupsChanged, Gone, PodChanged, Snapshot, Tick
from agent.report.events import PodEvents
from agent.report.placement import PLACEMENT, PlacementAnnotations
from tests.memory.rig import A as FIRST
from tests.memory.rig import B as SECOND
from tests.memory.rig import Rig, bound
from tests.report.api_model import NODE, ApiModel
from tests.report.rig import Told, empty_snapshot, get, served
from tests.report.telling import Telling

from .rig import KUBEPODS, WatchedKernel, World, exclusive_pod, shared_pod, two_sockets
from .test_runtime_cgroups import KubeletWorld

A, B = exclusive_pod("a", 2), exclusive_pod("b", 3)


class DenyingKernel(WatchedKernel):
    """Refuses writes below the cgroups that are named."""

    def write(self, path: CgroupPath, file: str, value: str) -> Gone | None:
        if file != "cgroup.subtree_control" and any(path.is_below(one) for one in self.denied):
            raise CgroupError(f"{path}/{file}", errno=13, action="write")
        return super().write(path, file, value)

    denied: tuple[CgroupPath, ...] = (CgroupPath(""),)


@dataclass
class Cluster:
    """What a cluster hears of the snapshots of an agent."""

    api: ApiModel = field(default_factory=ApiModel)

    def __post_init__(self) -> None:
        self.api.add(A, B)
        self.telling = Telling(self.api, PodEvents(NODE, empty_snapshot()), PlacementAnnotations())

    def hear(self, snapshot: Snapshot) -> set[str]:
        """Return the pods that are told to be placed by now."""
        self.telling.outbound.publish(snapshot)
        self.telling.run(10)
        of_events = {event["involvedObject"]["name"] for event in self.api.events.values()}
        pods = self.api.pods.items()
        annotated = {name for name, pod in pods if PLACEMENT in pod.annotations}
        assert annotated == {f"default/{name}" for name in of_events}
        return of_events


def readyz(snapshot: Snapshot) -> tuple[int, str]:
    with served(Told(snapshot)) as server:
        code, _, text = get(server.port, "/readyz")
    return code, text


@pytest.fixture
def denied(tmp_path: Path) -> World:
    return World(two_sockets(), tmp_path, kernel_class=DenyingKernel)


def test_what_the_kernel_refuses_is_neither_placed_nor_ready(denied: World) -> None:
    snapshot, cluster = denied.listed(A, shared_pod("s")), Cluster()
    assert snapshot.state.pods.keys() == {A.uid}
    assert snapshot.unenforced == {"a", "s"}
    assert cluster.hear(snapshot) == set()
    code, reason = readyz(snapshot)
    assert code == 503
    assert "cannot write" in reason

    assert isinstance(denied.kernel, DenyingKernel)
    denied.kernel.denied = ()
    snapshot = denied.handle(Tick())
    assert snapshot.unenforced == frozenset()
    assert cluster.hear(snapshot) == {"a"}
    assert readyz(snapshot) == (200, "ok\n")


def test_one_pod_that_is_refused_keeps_no_other_from_being_told(denied: World) -> None:
    assert isinstance(denied.kernel, DenyingKernel)
    denied.kernel.denied = (KUBEPODS / "podb" / "c0",)
    snapshot = denied.listed(A, B)
    assert snapshot.unenforced == {"b"}
    assert not snapshot.ready
    assert Cluster().hear(snapshot) == {"a"}


def test_ready_stays_ready_and_what_goes_wrong_later_is_told(denied: World) -> None:
    assert isinstance(denied.kernel, DenyingKernel)
    denied.kernel.denied = ()
    assert denied.listed(A).ready
    denied.kernel.denied = (KUBEPODS / "podb" / "c0",)
    snapshot = denied.handle(PodChanged(B))
    assert snapshot.ready
    assert snapshot.problems
    assert snapshot.unenforced == {"b"}


def test_drift_that_is_repaired_is_no_news(tmp_path: Path) -> None:
    world, cluster = World(two_sockets(), tmp_path), Cluster()
    assert cluster.hear(world.listed(A)) == {"a"}
    said = len(cluster.api.requests)
    world.kernel.foreign_write(KUBEPODS / "poda" / "c0", "cpuset.cpus", "0-15")
    snapshot = world.handle(Tick())
    assert snapshot.unenforced == frozenset()
    cluster.hear(snapshot)
    # Nothing brings the annotation back here as the watch would: it is not asked for again at once.
    assert len(cluster.api.requests) == said


def test_a_pod_is_placed_once_its_cgroup_is_there_and_the_node_is_ready_without(
    tmp_path: Path,
) -> None:
    world, cluster = KubeletWorld(two_sockets(), tmp_path), Cluster()
    snapshot = world.listed(A)
    assert snapshot.ready
    assert snapshot.unenforced == {"a"}
    assert cluster.hear(snapshot) == set()

    pod = world.pod(KUBEPODS / "poda")
    snapshot = world.handle(CgroupsChanged(KUBEPODS))
    assert snapshot.unenforced == frozenset()
    assert cluster.hear(snapshot) == {"a"}

    world.container(pod, "c0")
    assert world.handle(CgroupsChanged(pod)).unenforced == frozenset()


def test_who_only_observes_enforces_nothing_and_is_ready(tmp_path: Path) -> None:
    snapshot = World(two_sockets(), tmp_path, observe=True).listed(A)
    assert snapshot.ready
    assert not snapshot.tentative
    assert snapshot.unenforced == {"a"}


def test_memory_on_its_way_is_waited_for_by_nobody_but_what_has_no_room_is(tmp_path: Path) -> None:
    rig = Rig(tmp_path, deadline_s=0.05)
    rig.run(FIRST, 100, node=0)
    rig.kernel.gate.clear()
    assert rig.enforce(a=bound("1")).in_flight == (FIRST,)
    assert FIRST in rig.enforcer.granted
    assert FIRST not in rig.enforcer.settled
    rig.open_gate()

    full = Rig(tmp_path / "full")
    full.run(FIRST, 100, node=1)
    full.run(SECOND, 950, node=0)
    assert full.enforce(a=bound("1"), b=bound("1")).problems
    assert full.enforcer.granted == {FIRST}
