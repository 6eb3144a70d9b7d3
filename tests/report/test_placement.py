import json
from dataclasses import replace

from agent.core.pods import Container, Kind, Pod, PodUID
from agent.ports import Snapshot
from agent.report.placement import PLACEMENT, PlacementAnnotations, placement_text
from tests.reconciler.rig import equal, exclusive_pod, shared_pod

from .api_model import ApiModel, status
from .rig import snapshot_of, without
from .telling import Telling

DB = Pod(
    uid=PodUID("db-uid"),
    name="db",
    budget=equal(4000, 4),
    app_containers=(
        Container(name="database", resources=equal(2000)),
        Container(name="envoy-proxy"),
    ),
    ephemeral_containers=(Container(name="debug", kind=Kind.EPHEMERAL),),
)
TEXT = (
    '{"pool":"1-4","containers":{'
    '"database":{"verdict":"exclusive","cpus":"1-2","mems":"0"},'
    '"envoy-proxy":{"verdict":"pod-shared","cpus":"3-4","mems":"0"},'
    '"debug":{"verdict":"node-shared"}}}'
)


class Watched:
    """A cluster whose pods' annotations come back with the next snapshot, as through a watch."""

    def __init__(self, *pods: Pod) -> None:
        self.api = ApiModel()
        self.api.add(*pods)
        self.telling = Telling(self.api, PlacementAnnotations())
        self.show(snapshot_of(*pods))

    def show(self, snapshot: Snapshot, *, seconds: float = 10) -> None:
        pods = tuple(
            replace(pod, annotations=dict(self.api.pods[pod.full_name].annotations))
            for pod in snapshot.pods
            if pod.full_name in self.api.pods
        )
        self.snapshot = replace(snapshot, pods=pods)
        self.telling.outbound.publish(self.snapshot)
        self.telling.run(seconds)

    def annotations(self, pod: Pod) -> dict[str, str]:
        return self.api.pods[pod.full_name].annotations


def test_the_text_says_pool_verdicts_cpus_and_nodes() -> None:
    snapshot = snapshot_of(DB)
    text = placement_text(snapshot.verdict_on(DB))
    assert text == TEXT
    assert json.loads(text)["containers"]["database"]["cpus"] == "1-2"


def test_a_placed_pod_is_told_its_placement_once() -> None:
    cluster = Watched(DB)
    assert cluster.annotations(DB) == {PLACEMENT: TEXT}
    for _ in range(5):
        cluster.show(cluster.snapshot, seconds=1000)
    assert len(cluster.api.requests) == 1


def test_a_pod_without_anything_of_its_own_has_no_annotation() -> None:
    shared = shared_pod("s")
    cluster = Watched()
    cluster.api.add(replace(shared, annotations={PLACEMENT: "forged"}))
    cluster.show(replace(snapshot_of(shared), rejections={}))
    assert cluster.annotations(shared) == {}


def test_nothing_is_written_again_by_the_next_agent() -> None:
    cluster = Watched(DB)
    cluster.telling = Telling(cluster.api, PlacementAnnotations())
    cluster.show(snapshot_of(DB), seconds=10_000)
    assert len(cluster.api.requests) == 1


def test_the_placement_of_others_changes_no_annotation() -> None:
    cluster = Watched(DB)
    other = exclusive_pod("other", 3)
    cluster.api.add(other)
    cluster.show(snapshot_of(DB, other))
    assert [asked.path for asked in cluster.api.requests] == [
        "/api/v1/namespaces/default/pods/db",
        "/api/v1/namespaces/default/pods/other",
    ]


def test_a_changed_placement_and_a_changed_annotation_are_put_right() -> None:
    cluster = Watched(DB)
    elsewhere = without(snapshot_of(exclusive_pod("first", 3), DB), exclusive_pod("first", 3))
    cluster.show(elsewhere)
    assert '"pool":"4-7"' in cluster.annotations(DB)[PLACEMENT]
    cluster.show(elsewhere)
    cluster.annotations(DB)[PLACEMENT] = "mine"
    cluster.show(elsewhere)
    assert '"pool":"4-7"' in cluster.annotations(DB)[PLACEMENT]


def test_a_rejected_pod_has_no_placement() -> None:
    big = exclusive_pod("big", 64)
    cluster = Watched(replace(big, annotations={PLACEMENT: "all of it", "other": "stays"}))
    assert cluster.annotations(big) == {"other": "stays"}


def test_what_the_cgroups_do_not_say_yet_is_not_told() -> None:
    cluster = Watched()
    cluster.api.add(DB)
    refused = replace(snapshot_of(DB), unenforced=frozenset({DB.uid}))
    for _ in range(100):
        cluster.show(refused)
    assert cluster.api.requests == []
    cluster.show(snapshot_of(DB))
    assert cluster.annotations(DB) == {PLACEMENT: TEXT}


def test_a_placement_that_is_put_right_again_stays_told_and_another_one_does_not() -> None:
    cluster = Watched(DB)
    unenforced = frozenset({DB.uid})
    cluster.show(replace(snapshot_of(DB), unenforced=unenforced))
    assert len(cluster.api.requests) == 1
    other = exclusive_pod("first", 3)
    elsewhere = replace(without(snapshot_of(other, DB), other), unenforced=unenforced)
    cluster.show(elsewhere)
    assert cluster.annotations(DB) == {}
    cluster.show(replace(elsewhere, unenforced=frozenset()))
    assert '"pool":"4-7"' in cluster.annotations(DB)[PLACEMENT]


def test_another_pod_of_that_name_is_not_told() -> None:
    cluster = Watched()
    cluster.api.add(replace(DB, uid=PodUID("new-uid")))
    cluster.telling.outbound.publish(snapshot_of(DB))
    cluster.telling.run(10)
    assert cluster.annotations(DB) == {}
    assert cluster.telling.outcomes == {("annotation", "refused"): 1}


def test_a_pod_that_has_gone_is_no_trouble() -> None:
    cluster = Watched()
    cluster.telling.outbound.publish(snapshot_of(DB))
    cluster.telling.run(10)
    assert cluster.telling.outcomes == {("annotation", "said"): 1}


def test_a_write_that_does_not_show_is_tried_again_after_ten_minutes() -> None:
    cluster = Watched()
    cluster.api.add(DB)
    cluster.api.refuse = lambda _asked: status(422, "a webhook does not like it", "Invalid")
    for _ in range(120):
        cluster.show(snapshot_of(DB), seconds=10)
    assert len(cluster.api.requests) == 2
