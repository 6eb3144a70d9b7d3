from dataclasses import replace
from typing import Any

import pytest

from agent.core.entitlement import NOT_SELECTED
from agent.core.pods import Container, Pod, PodUID
from agent.measures import MemoryReport
from agent.ports import Rejection, Snapshot
from agent.report.events import (
    KEPT_S,
    OTHER_CPU_MANAGER,
    PodEvents,
    ShortageEvents,
    node_warning,
)
from agent.report.placement import PLACEMENT
from tests.reconciler.rig import equal, exclusive_pod, shared_pod

from .api_model import NODE, ApiModel, Body
from .rig import empty_snapshot, snapshot_of, without
from .telling import Telling

DB = replace(
    exclusive_pod("db", 1),
    budget=equal(4000, 4),
    app_containers=(
        Container(name="database", resources=equal(2000)),
        Container(name="envoy-proxy"),
    ),
)
BIG = exclusive_pod("big", 64)


def news(*snapshots: Snapshot) -> list[Body]:
    """Return the events that the last of these snapshots brings, a second after the one before it."""
    teller, asked = PodEvents(NODE, empty_snapshot()), []
    for number, snapshot in enumerate(snapshots):
        api = ApiModel()
        for message in teller.look(snapshot, float(number)):
            message.say(api)
        asked = api.requests
    return [one.body for one in asked]


def told(*snapshots: Snapshot) -> list[tuple[str, str, str]]:
    return [(e["involvedObject"]["name"], e["type"], e["reason"]) for e in news(*snapshots)]


def test_what_is_placed_is_told_with_who_has_what() -> None:
    (event,) = news(snapshot_of(DB))
    assert (event["type"], event["reason"]) == ("Normal", "Placed")
    assert (
        event["message"]
        == "CPUs 1-4 on NUMA node 0: database exclusive 1-2, envoy-proxy pod-shared 3-4"
    )


def test_memory_alone_is_a_place_too() -> None:
    pod = Pod(
        uid=PodUID("m"), name="m", app_containers=(Container(name="c0", resources=equal(1500)),)
    )
    (event,) = news(snapshot_of(pod))
    assert event["message"] == "memory on NUMA node 0: c0 node-shared"


def test_who_runs_on_the_nodes_shared_cpus_is_no_news() -> None:
    assert told(replace(snapshot_of(shared_pod("s")), rejections={})) == []


def test_what_the_kernel_refuses_is_not_placed_until_it_does_no_longer() -> None:
    decided = snapshot_of(DB)
    refused = replace(decided, unenforced=frozenset({DB.uid}))
    assert told(refused) == []
    assert told(refused, decided) == [("db", "Normal", "Placed")]
    assert told(decided, refused, replace(decided, taken_at_s=9.0)) == []


def test_what_could_not_be_placed_is_a_warning_with_the_kubelets_reason() -> None:
    (event,) = news(snapshot_of(BIG))
    assert (event["type"], event["reason"]) == ("Warning", "TopologyAffinityError")
    assert event["message"] == "does not fit"


def test_each_thing_is_news_once() -> None:
    now = snapshot_of(DB, BIG)
    assert told(now) == [
        ("db", "Normal", "Placed"),
        ("big", "Warning", "TopologyAffinityError"),
    ]
    assert told(now, replace(now, taken_at_s=99.0)) == []


def test_other_words_for_the_same_reason_are_no_news() -> None:
    now = snapshot_of(BIG)
    other = replace(now, rejections={BIG.uid: Rejection("TopologyAffinityError", "3 CPUs free")})
    assert told(now, other) == []
    worse = replace(now, rejections={BIG.uid: Rejection("SMTAlignmentError", "no")})
    assert told(now, worse) == [("big", "Warning", "SMTAlignmentError")]


def test_a_rejected_pod_that_finds_room_is_placed() -> None:
    rejected = replace(
        snapshot_of(), pods=(DB,), rejections={DB.uid: Rejection("SMTAlignmentError", "")}
    )
    assert told(rejected, snapshot_of(DB)) == [("db", "Normal", "Placed")]


def test_what_a_running_pod_cannot_have_is_a_warning() -> None:
    before = snapshot_of(DB)
    words = "Resources cannot be allocated with Topology locality"
    complaint = Rejection("TopologyAffinityError", words)
    unreadable = {"pod default/x": "spec: is wrong"}
    now = replace(before, complaints={DB.uid: complaint}, rejected_inputs=unreadable)
    (event,) = news(before, now)
    assert (event["type"], event["reason"]) == ("Warning", "TopologyAffinityError")
    assert event["message"].endswith("Topology locality; the pod keeps what it has")


def test_pods_that_are_not_selected_hear_nothing() -> None:
    now = replace(snapshot_of(BIG), rejections={BIG.uid: Rejection(NOT_SELECTED, "not selected")})
    assert told(now) == []


@pytest.mark.parametrize(("pause_s", "events"), [(1.0, 2), (3599.0, 2), (3601.0, 20)])
def test_a_reason_that_comes_and_goes_is_told_once_in_an_hour(pause_s: float, events: int) -> None:
    api = ApiModel()
    telling = Telling(api, PodEvents(NODE, empty_snapshot()))
    for number in range(20):
        reason = Rejection(("SMTAlignmentError", "TopologyAffinityError")[number % 2], "no")
        telling.outbound.publish(replace(snapshot_of(BIG), rejections={BIG.uid: reason}))
        telling.run(pause_s / 2)
    assert len(api.of("POST")) == events


def test_the_event_is_one_as_the_kubelet_writes_them() -> None:
    (event,) = news(replace(snapshot_of(DB), taken_at_s=1_796_040_000.7))
    body = dict(event)
    assert "exclusive 1-2" in body.pop("message")
    assert body.pop("metadata") == {"name": "db.62d70bf7db013bc8", "namespace": "default"}
    assert body == {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "db",
            "namespace": "default",
            "uid": "db",
        },
        "type": "Normal",
        "reason": "Placed",
        "source": {"component": "numalet", "host": NODE},
        "firstTimestamp": "2026-11-30T12:00:00Z",
        "lastTimestamp": "2026-11-30T12:00:00Z",
        "count": 1,
    }


@pytest.mark.parametrize("name", ["db", "a" * 253, "a" * 235 + "-" + "b" * 17])
def test_its_name_is_a_name_however_long_the_pods_is(name: str) -> None:
    pod = replace(DB, name=name, uid=PodUID("other"))
    names = set()
    for snapshot in (snapshot_of(DB), snapshot_of(pod), snapshot_of(replace(pod, uid=DB.uid))):
        (event,) = news(snapshot)
        metadata: Any = event["metadata"]
        first, _, digest = metadata["name"].rpartition(".")
        assert event["involvedObject"]["name"].startswith(first)
        assert first[-1].isalnum()
        assert len(digest) == 16
        assert len(metadata["name"]) <= 253
        names.add(metadata["name"])
    assert len(names) == (2 if name == "db" else 3)


def test_a_long_message_is_cut() -> None:
    now = replace(snapshot_of(), pods=(BIG,), rejections={BIG.uid: Rejection("X", "x" * 5000)})
    (event,) = news(now)
    assert event["message"] == "x" * 1024


def test_an_agent_that_starts_again_tells_nothing_twice() -> None:
    api, now = ApiModel(), snapshot_of(DB, BIG)
    first = Telling(api, PodEvents(NODE, empty_snapshot()))
    first.outbound.publish(now)
    first.run(10)
    assert first.outcomes == {("event", "said"): 2}
    events = dict(api.events)
    assert len(events) == 2

    second = Telling(api, PodEvents(NODE, after(now), annotated=False))
    second.outbound.publish(now)
    second.run(10)
    assert second.outcomes == {("event", "said"): 1}  # 409: the warning was told already
    assert api.events == events


def after(snapshot: Snapshot) -> Snapshot:
    """Return what the next agent has of this in the checkpoint, before its first pass."""
    return replace(snapshot, unenforced=frozenset(pod.uid for pod in snapshot.pods))


def test_what_an_agent_placed_while_the_server_was_away_is_told_by_the_next_one() -> None:
    api, now = ApiModel(), snapshot_of(DB, exclusive_pod("other", 2))
    annotated = replace(DB, annotations={PLACEMENT: "what the agent before has said"})
    telling = Telling(api, PodEvents(NODE, after(now)))
    telling.outbound.publish(replace(now, pods=(annotated, *now.pods[1:])))
    telling.run(10)
    assert [event["involvedObject"]["name"] for event in api.events.values()] == ["other"]


def test_where_nothing_tells_of_it_a_start_is_no_storm() -> None:
    api, now = ApiModel(), snapshot_of(DB, exclusive_pod("other", 2))
    telling = Telling(api, PodEvents(NODE, after(now), annotated=False))
    telling.outbound.publish(now)
    telling.run(10)
    assert api.events == {}


def test_a_warning_that_the_server_has_forgotten_is_told_by_the_next_agent() -> None:
    api, now = ApiModel(), snapshot_of(BIG)
    again = Telling(api, PodEvents(NODE, now))
    again.outbound.publish(now)
    again.run(10)
    assert [event["reason"] for event in api.events.values()] == ["TopologyAffinityError"]


def test_a_pod_of_the_same_name_has_its_own_event() -> None:
    api, namesake = ApiModel(), replace(DB, uid=PodUID("db-2"))
    telling = Telling(api, PodEvents(NODE, empty_snapshot()))
    for snapshot in (snapshot_of(DB), without(snapshot_of(DB), DB), snapshot_of(namesake)):
        telling.outbound.publish(snapshot)
        telling.run(10)
    assert [event["involvedObject"]["uid"] for event in api.events.values()] == ["db", "db-2"]


def test_another_cpu_manager_is_told_of_on_the_node_once_though_nothing_else_is() -> None:
    api = ApiModel()
    for _ in range(2):  # the second one is of the agent after this one
        telling = Telling(api)
        warning = node_warning(OTHER_CPU_MANAGER, "koordlet", "koordlet runs", 9.0, NODE)
        telling.outbound.say(warning)
        telling.run(60)  # no snapshot has come, or none that may be told
        assert telling.outcomes == {("event", "said"): 1}
    (event,) = api.events.values()
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": NODE,
        "uid": NODE,
    }
    said = (event["type"], event["reason"], event["message"], event["firstTimestamp"])
    assert said == ("Warning", "OtherCPUManager", "koordlet runs", "1970-01-01T00:00:09Z")


def test_nodes_short_of_memory_are_told_of_on_the_node_once_an_hour_while_they_are() -> None:
    def short(**nodes: str) -> Snapshot:
        memory = MemoryReport(shortages={name[1:]: text for name, text in nodes.items()})
        return replace(empty_snapshot(), memory=memory, taken_at_s=9.0)

    teller = ShortageEvents(NODE)
    both = short(n0="0 has 1Mi", n1="1 has 2Mi")
    hour_later = replace(both, taken_at_s=9.0 + KEPT_S)
    rounds = [short(), short(n0="0 has 1Mi"), both, both, hour_later, hour_later, short()]
    asked = [teller.look(snapshot, 0.0) for snapshot in rounds]
    api = ApiModel()
    for message in (message for messages in asked for message in messages):
        message.say(api)
    assert [len(messages) for messages in asked] == [0, 1, 1, 0, 2, 0, 0]
    said = [
        (e["involvedObject"]["kind"], e["type"], e["reason"], e["message"])
        for e in api.events.values()
    ]
    assert said == 2 * [  # the server has forgotten the first two by then
        ("Node", "Warning", "MemoryShort", "0 has 1Mi"),
        ("Node", "Warning", "MemoryShort", "1 has 2Mi"),
    ]
