"""How long a pod waits for its devices, with time, cgroups and the kubelet in the test's hand."""

import queue
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.core.cgroups import CgroupPath
from agent.core.pods import Container, DeviceNodes, Kind, Pod, PodUID
from agent.ports import CgroupsChanged, DevicesFound, Event, PodChanged, PodGone, PodsListed, Tick
from agent.sources.kubelet_devices import DeviceSettings, KubeletDevices
from agent.sources.pod_resources import KubeletSilent, NoPodResources, PodResources
from tests.report.rig import until
from tests.scratch import scratch_folder

from .kubelet_server import GPU, Kubelet, devices
from .kubelet_server import pod as told_pod
from .rig import PATIENCE_S, FakeTime

NIC = "example.com/nic"
SETTINGS = DeviceSettings(
    limit_s=10.0, first_pause_s=0.5, most_pause_s=4.0, late_pause_s=60.0, close_s=1.0
)
ON_0: DeviceNodes = {"app": {GPU: ((0,),)}}
ON_1: DeviceNodes = {"app": {GPU: ((1,),)}}
SILENT = KubeletSilent("the kubelet is silent")


def gpu_pod(name: str, *resources: str) -> Pod:
    app = Container(name="app", extended=resources or (GPU,))
    return Pod(uid=PodUID(name), name=name, app_containers=(app,))


A, B = gpu_pod("a"), gpu_pod("b")
AGAIN = replace(A, uid=PodUID("a-again"))
PLAIN = Pod(uid=PodUID("plain"), name="plain", app_containers=(Container(name="app"),))


@dataclass
class World:
    """A kubelet that answers with ``says``, or not at all, and cgroups of these pods."""

    says: dict[str, DeviceNodes] | Exception = field(default_factory=dict)
    cgroups: set[PodUID] = field(default_factory=set)
    time: FakeTime = field(default_factory=FakeTime)
    posted: list[Event] = field(default_factory=list)
    asked: int = 0

    def __post_init__(self) -> None:
        self.source = KubeletDevices(
            ask=self.ask,
            has_cgroup=lambda pod: pod.uid in self.cgroups,
            post=self.posted.append,
            clock=self.time,
            settings=SETTINGS,
        )

    def ask(self) -> Mapping[str, DeviceNodes]:
        self.asked += 1
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    def hear(self, *events: Event) -> list[Event]:
        """Let it hear, look once if it is time to, and return what it posts."""
        self.posted.clear()
        for event in events:
            self.source.take(event)
        if self.source.pause_s() == 0.0:
            self.source.look()
        return self.posted

    def wait(self, seconds: float) -> list[Event]:
        """Let time go by, with all looks that fall into it."""
        found, end = [], self.time.monotonic + seconds
        while (pause_s := self.source.pause_s()) is not None:
            if self.time.monotonic + pause_s > end:
                break
            self.time.monotonic += pause_s
            found += self.hear()
        self.time.monotonic = end
        return found


def test_a_pod_is_told_as_soon_as_the_kubelet_lists_its_devices() -> None:
    world = World()
    assert world.hear(PodChanged(A)) == []
    assert world.wait(1) == []
    world.says = {"default/a": ON_1}
    assert world.wait(2) == [DevicesFound(A.uid, ON_1)]


def test_a_pod_that_asks_for_no_devices_costs_no_question() -> None:
    world = World()
    assert world.hear(PodsListed((PLAIN,)), PodChanged(PLAIN), Tick()) == []
    assert (world.source.pause_s(), world.asked) == (None, 0)


def test_one_question_serves_all_who_wait() -> None:
    world = World(says={"default/a": ON_1, "default/b": ON_1})
    assert world.hear(PodsListed((A, PLAIN, B))) == [
        DevicesFound(A.uid, ON_1),
        DevicesFound(B.uid, ON_1),
    ]
    assert world.asked == 1


def test_a_pod_waits_until_each_container_has_each_of_its_resources() -> None:
    init = Container(name="init", kind=Kind.INIT, extended=(GPU,))
    each = replace(gpu_pod("a", NIC, GPU), init_containers=(init,))
    world = World(says={"default/a": ON_1})
    assert world.hear(PodChanged(each)) == []
    both: DeviceNodes = {"app": {GPU: ((1,),), NIC: ()}}
    world.says = {"default/a": both}
    assert world.wait(1) == [DevicesFound(each.uid, both)]


def test_once_the_cgroup_is_there_what_the_kubelet_says_is_all_there_is() -> None:
    world = World(says={"default/a": {"app": {}}, "default/b": {"app": {}}})
    assert world.hear(PodChanged(A), PodChanged(B)) == []
    world.cgroups.add(A.uid)
    assert world.wait(1) == [DevicesFound(A.uid, {"app": {}})]


def test_a_cgroup_that_is_there_says_nothing_while_the_kubelet_is_silent() -> None:
    world = World(says=SILENT, cgroups={A.uid})
    assert world.hear(PodChanged(A)) == []
    world.says = {"default/a": ON_1}
    assert world.wait(1) == [DevicesFound(A.uid, ON_1)]


@pytest.mark.parametrize("says", [{}, SILENT, ValueError("a bug")], ids=str)
def test_after_the_limit_a_pod_waits_no_longer_whatever_the_kubelet_says(
    says: dict[str, DeviceNodes] | Exception,
) -> None:
    world = World(says=says)
    with capture_logs() as logs:
        assert world.hear(PodChanged(A)) == []
        assert world.wait(9.9) == []
        assert world.wait(0.1) == [DevicesFound(A.uid, None)]
    (line,) = [line for line in logs if line["event"] == "devices_not_known"]
    assert line["pod"] == "default/a"


def test_each_pod_has_a_limit_of_its_own() -> None:
    world = World(says=SILENT)
    world.hear(PodChanged(A))
    world.wait(6)
    world.hear(PodChanged(B), PodChanged(replace(A, labels={"new": "label"})))
    assert world.wait(4) == [DevicesFound(A.uid, None)]
    assert world.wait(6) == [DevicesFound(B.uid, None)]


def test_a_pod_that_was_given_up_is_asked_about_now_and_then() -> None:
    world = World(says=SILENT)
    world.hear(PodChanged(A))
    world.wait(10)
    asked = world.asked
    assert world.wait(179) == []
    assert world.asked == asked + 2
    world.says = {"default/a": ON_1}
    assert world.wait(60) == [DevicesFound(A.uid, ON_1)]
    assert world.source.pause_s() is None


def test_where_nobody_can_be_asked_nobody_waits_and_it_is_said_once() -> None:
    world = World(says=NoPodResources("there is no such socket"))
    with capture_logs() as logs:
        assert world.hear(PodChanged(A)) == [DevicesFound(A.uid, None)]
        assert world.hear(PodChanged(B)) == [DevicesFound(B.uid, None)]
        world.says = {"default/a": ON_1}
        assert world.wait(60) == [DevicesFound(A.uid, ON_1)]
    told = [line for line in logs if line["event"] == "devices_not_told"]
    assert [line["what"] for line in told] == ["there is no such socket"]
    assert [line["event"] for line in logs][-1] == "devices_told_again"


def test_a_pod_is_told_of_once_however_often_it_changes() -> None:
    world = World(says={"default/a": ON_1})
    assert world.hear(PodChanged(A)) == [DevicesFound(A.uid, ON_1)]
    assert world.hear(PodChanged(replace(A, labels={"new": "label"})), PodsListed((A,))) == []
    assert world.asked == 1


@pytest.mark.parametrize("gone", [PodGone(A.uid), PodsListed((AGAIN,))], ids=str)
def test_what_a_predecessor_had_is_not_told_of_a_pod_of_his_name(gone: Event) -> None:
    """A StatefulSet's pod is deleted by force, and made again before the kubelet has heard of that."""
    world = World(says={"default/a": ON_1}, cgroups={A.uid})
    assert world.hear(PodChanged(A)) == [DevicesFound(A.uid, ON_1)]

    assert world.hear(gone, PodChanged(AGAIN)) == []
    assert world.wait(5) == []
    world.says, world.cgroups = {"default/a": ON_0}, {AGAIN.uid}

    assert world.wait(1 + SETTINGS.most_pause_s) == [DevicesFound(AGAIN.uid, ON_0)]


def test_a_predecessor_that_has_left_before_his_cgroup_was_made_may_still_be_listed() -> None:
    world = World(says={"default/a": ON_1})
    world.hear(PodChanged(A))

    assert world.hear(PodGone(A.uid), PodChanged(AGAIN)) == []
    assert world.wait(SETTINGS.limit_s) == [DevicesFound(AGAIN.uid, ON_1)]


def test_a_predecessor_who_has_gone_long_ago_delays_nobody() -> None:
    world = World(says={"default/a": ON_1})
    world.hear(PodChanged(A), PodGone(A.uid))
    world.wait(SETTINGS.limit_s)

    assert world.hear(PodChanged(AGAIN)) == [DevicesFound(AGAIN.uid, ON_1)]
    world.hear(PodGone(AGAIN.uid))
    assert world.source._former.keys() == {AGAIN.uid}


def test_beside_a_predecessor_s_cgroup_a_pod_waits_no_longer_than_its_limit() -> None:
    world = World(says={"default/a": ON_1}, cgroups={A.uid})
    world.hear(PodChanged(A))
    world.wait(100)

    assert world.hear(PodGone(A.uid), PodChanged(AGAIN)) == []
    assert world.wait(SETTINGS.limit_s) == [DevicesFound(AGAIN.uid, None)]
    world.cgroups.clear()
    assert world.wait(SETTINGS.late_pause_s) == [DevicesFound(AGAIN.uid, ON_1)]


@pytest.mark.parametrize("unreadable", [None, frozenset({A.uid})], ids=str)
def test_who_cannot_be_read_any_more_has_not_gone(unreadable: frozenset[PodUID] | None) -> None:
    world = World()
    world.hear(PodChanged(A), PodsListed((), unreadable))
    world.says = {"default/a": ON_1}

    assert world.wait(1) == [DevicesFound(A.uid, ON_1)]


def test_a_cgroup_that_appears_wakes_who_waits_for_it() -> None:
    world = World(says={"default/a": {"app": {}}, "default/b": {"app": {}}})
    world.hear(PodChanged(A), PodChanged(B))
    assert world.hear(CgroupsChanged(CgroupPath("of/another"))) == []
    asked = world.asked

    world.cgroups.add(A.uid)

    assert world.hear(CgroupsChanged(CgroupPath("of/a"))) == [DevicesFound(A.uid, {"app": {}})]
    assert world.asked == asked + 1


def test_a_kubelet_that_is_silent_is_not_asked_at_each_new_cgroup() -> None:
    world = World(says=SILENT)
    world.hear(PodChanged(A))
    world.cgroups.add(A.uid)
    world.hear(CgroupsChanged(CgroupPath("of/a")))
    asked = world.asked

    world.hear(*(CgroupsChanged(CgroupPath("of/a/container")) for _ in range(5)))

    assert world.asked == asked


@pytest.mark.parametrize("gone", [PodGone(A.uid), PodsListed((PLAIN,))], ids=str)
def test_a_pod_that_has_gone_is_forgotten(gone: Event) -> None:
    world = World()
    world.hear(PodChanged(A))
    assert world.hear(gone) == []
    assert world.source.pause_s() is None
    world.says = {"default/a": ON_1}
    assert world.hear(PodChanged(A), gone, PodChanged(A)) == [DevicesFound(A.uid, ON_1)]


def test_the_pauses_between_questions_grow_and_a_new_pod_is_asked_about_at_once() -> None:
    world = World()
    world.hear(PodChanged(A))
    pauses = []
    for _ in range(4):
        pause_s = world.source.pause_s()
        assert pause_s is not None
        pauses.append(pause_s)
        world.wait(pause_s)
    assert pauses == [0.5, 1.0, 2.0, 4.0]
    asked = world.asked
    world.hear(PodChanged(B))
    assert (world.asked, world.source.pause_s()) == (asked + 1, 0.5)


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    with scratch_folder() as folder:
        yield Kubelet(Path(folder) / "kubelet.sock")


def test_a_kubelet_that_hangs_holds_up_nobody_who_posts(kubelet: Kubelet) -> None:
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    time = FakeTime()
    source = KubeletDevices(
        ask=PodResources(kubelet.socket, deadline_s=0.2).devices,
        has_cgroup=lambda _pod: False,
        post=events.put,
        clock=time,
        settings=replace(SETTINGS, first_pause_s=0.01, most_pause_s=0.01),
    )
    kubelet.answer = kubelet.hang
    source.start()
    with closing(source), kubelet.serving():
        source.hear(PodChanged(A))
        until(lambda: kubelet.asked > 0)
        time.monotonic += SETTINGS.limit_s
        assert events.get(timeout=PATIENCE_S) == DevicesFound(A.uid, None)
        kubelet.answer = None
        kubelet.pods = [told_pod("b", app=devices(GPU, [0]))]
        source.hear(PodChanged(B))
        assert events.get(timeout=PATIENCE_S) == DevicesFound(B.uid, {"app": {GPU: ((0,),)}})
    assert not source._thread.is_alive()
