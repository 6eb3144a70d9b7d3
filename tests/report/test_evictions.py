from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import pytest

from agent.core.entitlement import NOT_SELECTED, UNBACKED_BUDGET, UNSUPPORTED_RUNTIME
from agent.core.pods import Pod, PodUID
from agent.errors import StateFileError
from agent.ports import Rejection, Snapshot
from agent.report.evictions import Evictions, EvictionTimes, may_be_evicted
from agent.simulation.clock import SimulatedClock
from tests.reconciler.rig import exclusive_pod

from .api_model import ApiModel, Asked, forbidden
from .rig import snapshot_of, without
from .telling import Telling

PRIORITY = 0


def rejected(name: str) -> Pod:
    return replace(exclusive_pod(name, 64), priority=PRIORITY, controller="ReplicaSet")


A = rejected("a")


class Cluster:
    """Pods that do not fit, and an agent that may evict them."""

    def __init__(
        self, *pods: Pod, most_per_hour: int = 10, times: EvictionTimes | None = None
    ) -> None:
        self.api = ApiModel()
        self.api.add(*pods)
        self.clock = SimulatedClock(start_s=1_796_040_000.0)
        self.most_per_hour, self.times = most_per_hour, times
        self.snapshot = snapshot_of(*pods)
        self.start()

    def start(self) -> None:
        """Let another agent take over, which sees what the one before it has done."""
        pods = tuple(
            replace(pod, is_terminating=True) if pod.full_name in self.evicted else pod
            for pod in self.snapshot.pods
        )
        self.snapshot = replace(self.snapshot, pods=pods)
        evictions = Evictions(self.clock, most_per_hour=self.most_per_hour, times=self.times)
        self.telling = Telling(self.api, evictions, clock=self.clock)

    def run(self, seconds: float, snapshot: Snapshot | None = None) -> None:
        """Publish what is known every ten seconds, as an agent does."""
        self.snapshot = snapshot or self.snapshot
        for _ in range(int(seconds / 10)):
            self.telling.outbound.publish(replace(self.snapshot))
            self.telling.run(10)

    @property
    def troubles(self) -> Mapping[str, str]:
        return self.telling.outbound.numbers().troubles

    @property
    def evicted(self) -> list[str]:
        return [name for name, pod in self.api.pods.items() if pod.is_terminating]


def test_a_rejected_pod_is_evicted_after_half_a_minute_and_once() -> None:
    cluster = Cluster(A)
    cluster.run(30)
    assert cluster.api.requests == []
    cluster.run(7200)
    assert cluster.evicted == ["default/a"]
    (asked,) = cluster.api.requests
    assert asked.path == "/api/v1/namespaces/default/pods/a/eviction"
    assert asked.body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": "default"},
        "deleteOptions": {"preconditions": {"uid": "a"}},
    }


def test_a_pod_that_finds_room_in_time_is_left_alone() -> None:
    cluster = Cluster(A)
    cluster.run(20)
    placed = replace(snapshot_of(exclusive_pod("a", 2)), rejections={})
    cluster.run(7200, placed)
    assert cluster.api.requests == []


def test_what_is_placed_is_never_evicted() -> None:
    placed = replace(exclusive_pod("b", 2), priority=0)
    cluster = Cluster(placed, A)
    cluster.run(600)
    assert cluster.evicted == ["default/a"]


@pytest.mark.parametrize(
    "changes",
    [
        {"controller": ""},
        {"controller": "DaemonSet"},
        {"controller": "Node"},
        {"annotations": {"kubernetes.io/config.mirror": "abc"}},
        {"annotations": {"kubernetes.io/config.source": "file"}},
        {"priority": 2_000_000_000},
        {"priority": 2_000_001_000},
        {"priority": None},
    ],
)
def test_some_pods_are_never_evicted(changes: dict[str, object]) -> None:
    pod = replace(A, **changes)  # type: ignore[arg-type]  # each is right for its field
    assert not may_be_evicted(pod)
    cluster = Cluster(pod)
    cluster.run(3600)
    assert cluster.api.requests == []


@pytest.mark.parametrize(
    "changes",
    [
        {"controller": "Job"},
        {"annotations": {"kubernetes.io/config.source": "api"}},
        {"priority": 1_999_999_999},
        {"priority": -10},
    ],
)
def test_ordinary_pods_may_be(changes: dict[str, object]) -> None:
    assert may_be_evicted(replace(A, **changes))  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("reason", [NOT_SELECTED, UNBACKED_BUDGET, UNSUPPORTED_RUNTIME])
def test_what_no_node_would_place_is_not_sent_around(reason: str) -> None:
    cluster = Cluster(A)
    snapshot = replace(cluster.snapshot, rejections={A.uid: Rejection(reason, "no")})
    cluster.run(3600, snapshot)
    assert cluster.api.requests == []


def test_so_many_an_hour_and_no_more() -> None:
    pods = [rejected(f"p{n}") for n in range(5)]
    cluster = Cluster(*pods, most_per_hour=2)
    cluster.run(1800)
    assert len(cluster.evicted) == 2
    assert len(cluster.api.requests) == 2
    assert "2 pods were evicted within an hour" in cluster.troubles["eviction"]
    cluster.run(1800 + 30)
    assert len(cluster.evicted) == 2
    cluster.run(600)
    assert len(cluster.evicted) == 4


@dataclass
class Memory:
    """What a disk remembers; ``broken`` says that it can be neither read nor written."""

    times_s: list[float] = field(default_factory=list)
    broken: bool = False

    def load(self) -> tuple[float, ...]:
        self.check()
        return tuple(self.times_s)

    def save(self, times_s: Iterable[float]) -> None:
        self.check()
        self.times_s = list(times_s)

    def check(self) -> None:
        if self.broken:
            raise StateFileError("evictions.json cannot be used")


SIX = [rejected(f"p{n}") for n in range(6)]


def test_an_agent_that_starts_again_has_no_more_an_hour_than_one_that_stays() -> None:
    cluster = Cluster(*SIX, most_per_hour=2, times=Memory())
    for evicted in (2, 4, 6):
        for _ in range(5):
            cluster.start()
            cluster.run(600)
            assert len(cluster.evicted) == evicted
        cluster.run(600)


def test_a_clock_that_is_set_back_opens_no_door() -> None:
    in_an_hour = Memory([1_796_040_000.0 + 3600] * 2)
    cluster = Cluster(*SIX, most_per_hour=2, times=in_an_hour)
    cluster.run(3600)
    assert cluster.evicted == []
    cluster.run(600)
    assert len(cluster.evicted) == 2


def test_who_cannot_remember_evicts_nobody_and_says_so() -> None:
    times = Memory(broken=True)
    cluster = Cluster(*SIX, most_per_hour=2, times=times)
    cluster.run(7200)
    assert cluster.api.requests == []
    assert cluster.troubles == {"eviction": "evictions.json cannot be used"}
    times.broken = False
    cluster.run(120)
    assert len(cluster.evicted) == 2
    assert len(times.times_s) == 2


def test_who_does_not_know_what_was_evicted_before_waits_for_an_hour() -> None:
    times = Memory(broken=True)
    cluster = Cluster(*SIX, most_per_hour=2, times=times)
    times.broken = False
    cluster.run(3600)
    assert cluster.evicted == []
    cluster.run(600)
    assert len(cluster.evicted) == 2


def test_a_save_that_fails_after_an_eviction_lets_it_be_the_last() -> None:
    times = Memory()
    cluster = Cluster(*SIX, most_per_hour=5, times=times)

    def fill_disk(asked: Asked) -> None:
        times.broken = asked.method == "POST"

    cluster.api.refuse = fill_disk
    cluster.run(600)
    assert len(cluster.evicted) == 1
    cluster.api.refuse = lambda _asked: None
    times.broken = False
    cluster.run(600)
    assert len(cluster.evicted) == 5
    assert len(times.times_s) == 5


def test_pods_that_are_being_deleted_are_let_go_and_do_not_count() -> None:
    leaving = [replace(pod, is_terminating=True) for pod in SIX[:5]]
    cluster = Cluster(*leaving, SIX[5], most_per_hour=1)
    cluster.run(600)
    assert cluster.evicted == ["default/p5"]
    assert len(cluster.api.requests) == 1


def test_a_disruption_budget_holds_and_is_asked_again() -> None:
    cluster = Cluster(A)
    cluster.api.disruptions = 0
    cluster.run(3600)
    assert cluster.evicted == []
    assert "needs 2 healthy pods" in cluster.troubles["eviction"]
    asked = len(cluster.api.requests)
    assert 60 <= asked <= 70  # once a minute in the end

    cluster.api.disruptions = 1
    cluster.run(120)
    assert cluster.evicted == ["default/a"]
    assert cluster.troubles == {}


def test_a_pod_that_is_placed_while_its_budget_holds_is_not_evicted_any_more() -> None:
    cluster = Cluster(A)
    cluster.api.disruptions = 0
    cluster.run(60)
    asked = len(cluster.api.requests)
    assert asked > 0
    cluster.api.disruptions = 1
    cluster.run(3600, replace(snapshot_of(exclusive_pod("a", 2)), rejections={}))
    assert len(cluster.api.requests) == asked
    assert cluster.troubles == {}


def test_a_budget_that_nobody_has_looked_at_yet_is_waited_for() -> None:
    cluster = Cluster(A)
    cluster.api.disruptions, cluster.api.is_budget_known = 1, False
    cluster.run(50)
    assert len(cluster.api.requests) == 2
    cluster.api.is_budget_known = True
    cluster.run(60)
    assert cluster.evicted == ["default/a"]


def test_two_budgets_over_a_pod_are_tried_in_vain_but_rarely() -> None:
    cluster = Cluster(A)
    cluster.api.budgets = 2
    cluster.run(3600)
    assert cluster.evicted == []
    assert len(cluster.api.requests) == 5 * 6  # five tries every ten minutes


def test_another_pod_of_that_name_is_not_evicted() -> None:
    cluster = Cluster(A)
    cluster.api.add(replace(A, uid=PodUID("another")))
    cluster.run(3600)
    assert cluster.evicted == []
    assert len(cluster.api.requests) == 1


def test_a_pod_that_has_gone_is_asked_for_once() -> None:
    cluster = Cluster(A)
    cluster.api.pods.clear()
    cluster.run(3600)
    assert len(cluster.api.requests) == 1
    cluster.run(60, without(cluster.snapshot, A))
    assert len(cluster.api.requests) == 1


def test_without_the_right_the_server_is_hardly_asked() -> None:
    cluster = Cluster(A, rejected("b"))
    cluster.api.refuse = lambda _asked: forbidden("pods/eviction")
    cluster.run(3600)
    assert cluster.evicted == []
    assert len(cluster.api.requests) <= 13
