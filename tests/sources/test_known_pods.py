import pytest

from agent.core.pods import PodUID
from agent.ports import Event, InputRejected, PodChanged, PodGone, PodsListed
from agent.sources.known_pods import KnownPods

from .rig import parse, pod, raw_pod

WHERE = "pod default/odd"
ODD = raw_pod("odd", broken="no quantity")
REJECTED = InputRejected(WHERE, "spec.containers[0]: no quantity")
RIGHT_AGAIN = InputRejected(WHERE, "")
UNREADABLE = PodsListed((), frozenset({PodUID("uid-odd")}))
GONE = PodGone(PodUID("uid-odd"))


def known() -> tuple[KnownPods, list[Event]]:
    told: list[Event] = []
    return KnownPods(told.append, parse), told


def test_a_pod_that_stays_wrong_is_reported_once() -> None:
    pods, told = known()

    pods.all([ODD])
    pods.changed(ODD)
    pods.all([ODD])

    assert told == [REJECTED, UNREADABLE, UNREADABLE]


def test_a_pod_that_is_wrong_in_another_way_is_reported_again() -> None:
    pods, told = known()

    pods.changed(ODD)
    pods.changed(raw_pod("odd", broken="no name"))

    assert told == [REJECTED, InputRejected(WHERE, "spec.containers[0]: no name")]


def test_a_pod_that_can_be_read_again_withdraws_its_report() -> None:
    pods, told = known()

    pods.changed(ODD)
    pods.changed(raw_pod("odd"))

    assert told == [REJECTED, RIGHT_AGAIN, PodChanged(pod("odd"))]


def test_a_wrong_pod_that_is_deleted_withdraws_its_report_and_is_gone() -> None:
    pods, told = known()

    pods.changed(ODD)
    pods.gone(ODD)

    assert told == [REJECTED, RIGHT_AGAIN, GONE]


def test_a_wrong_pod_that_has_ended_withdraws_its_report_and_is_gone_once() -> None:
    pods, told = known()
    ended = raw_pod("odd", broken="no quantity", phase="Failed")

    pods.changed(ODD)
    pods.changed(ended)
    pods.changed(ended)
    pods.gone(ended)

    assert told == [REJECTED, RIGHT_AGAIN, GONE]


def test_a_wrong_pod_that_a_list_no_longer_has_withdraws_its_report() -> None:
    pods, told = known()

    pods.all([ODD])
    pods.all([])

    assert told == [REJECTED, UNREADABLE, RIGHT_AGAIN, PodsListed(())]


def test_the_report_of_a_new_wrong_pod_outlives_the_old_one_of_the_same_name() -> None:
    pods, told = known()

    pods.all([raw_pod("odd", "one", broken="no quantity")])
    pods.all([raw_pod("odd", "two", broken="no quantity")])

    assert [event for event in told if isinstance(event, InputRejected)] == [
        REJECTED,
        RIGHT_AGAIN,
        REJECTED,
    ]


def test_a_known_pod_keeps_its_last_readable_state_while_the_present_one_is_wrong() -> None:
    pods, told = known()

    pods.all([raw_pod("odd")])
    pods.changed(ODD)
    pods.all([ODD])

    good = PodsListed((pod("odd"),))
    assert told == [good, REJECTED, good]


def test_a_pod_that_surprises_the_reader_does_not_hide_the_others() -> None:
    pods, told = known()
    strange = {"metadata": {"name": "strange", "namespace": "default", "uid": "s"}}

    pods.all([strange, raw_pod("a")])

    assert told == [
        InputRejected("pod default/strange", "KeyError: 'labels'"),
        PodsListed((pod("a"),), frozenset({PodUID("s")})),
    ]


def test_an_object_without_metadata_is_reported_by_what_is_known_of_it() -> None:
    pods, told = known()

    pods.changed({"spec": {}})

    assert told == [InputRejected("pod ?/?", "KeyError: 'metadata'")]


def test_a_pod_of_before_this_process_is_gone_too() -> None:
    pods, told = known()

    pods.gone(raw_pod("a"))

    assert told == [PodGone(PodUID("uid-a"))]


def test_a_pod_that_a_list_shows_ended_is_not_called_gone_once_more() -> None:
    pods, told = known()
    ended = raw_pod("a", phase="Succeeded")

    pods.all([ended])
    pods.changed(ended)
    pods.gone(ended)

    assert told == [PodsListed(())]


def test_a_static_pod_that_cannot_be_read_is_known_by_the_hash_of_its_manifest() -> None:
    pods, told = known()
    mirror = raw_pod("odd", "mirror-uid", broken="no quantity")
    metadata = mirror["metadata"]
    assert isinstance(metadata, dict)
    metadata["annotations"] = {
        "kubernetes.io/config.mirror": "ab" * 16,
        "kubernetes.io/config.hash": "ab" * 16,
        "a wrong": 1,
    }

    pods.all([mirror])
    pods.gone(mirror)

    static = PodUID("ab" * 16)
    assert [told[1], told[-1]] == [PodsListed((), frozenset({static})), PodGone(static)]


@pytest.mark.parametrize("metadata", [{}, {"uid": 7}, {"uid": ""}, {"annotations": "no"}, "no"])
def test_an_object_that_tells_no_uid_is_nobody(metadata: object) -> None:
    pods, told = known()

    pods.all([{"metadata": metadata, "spec": {}}])
    pods.gone({"metadata": metadata, "spec": {}})

    assert [event for event in told if not isinstance(event, InputRejected)] == [PodsListed(())]


def test_a_pod_is_gone_under_the_uid_that_it_was_told_with() -> None:
    told: list[Event] = []
    pods = KnownPods(told.append, lambda raw, *, where: pod("static", "config-hash"))

    pods.changed(raw_pod("static", "mirror-uid"))
    pods.gone(raw_pod("static", "mirror-uid"))

    assert told == [PodChanged(pod("static", "config-hash")), PodGone(PodUID("config-hash"))]
