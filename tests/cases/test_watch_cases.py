"""Cases from the field about following the API server: silence, 410, tokens, mirrors, crowds."""

import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from math import ceil
from pathlib import Path

import pytest

from agent.core.pods import PodUID
from agent.node.cgroup_layout import CgroupLayout
from agent.ports import CgroupsChanged, Event, PodsListed
from agent.report.metrics import OwnUse, exposition
from agent.sources.api_access import load_client
from agent.sources.api_rules import parse_served
from agent.sources.known_pods import KnownPods
from agent.sources.kubernetes import PodWatch, WatchSettings
from tests.reconciler.rig import KUBEPODS, World
from tests.reconciler.test_runtime_cgroups import KubeletWorld
from tests.report.rig import until
from tests.sources.api_server import (
    Answer,
    Handler,
    ScriptedApiServer,
    killed,
    line,
    page,
    stalled,
    status,
    stream,
)
from tests.sources.rig import WELL, FakeTime, Rig
from tests.sources.test_kubernetes import EXPIRED
from tests.strategies import machine

from .answers import answers, compare
from .loader import Case
from .pods import rules

EIGHT = machine(cores_per_node=8, threads=1)
FIVE_MINUTES_S = 300.0
Raw = dict[str, object]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    (tmp_path / "rig").mkdir()
    rig = Rig(tmp_path / "rig")
    rig.parse = parse_served
    yield rig
    rig.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(rules(EIGHT), tmp_path)


def served(name: str, uid: str = "", **metadata: object) -> Raw:
    """Return a Guaranteed pod with two CPUs, as the API server shows it."""
    amounts = {"cpu": "2", "memory": "1Gi"}
    container = {"name": "a", "resources": {"requests": amounts, "limits": amounts}}
    names = {"name": name, "namespace": "default", "uid": uid or name, "resourceVersion": "101"}
    return {
        "metadata": names | metadata,
        "spec": {"containers": [container]},
        "status": {"phase": "Running", "qosClass": "Guaranteed"},
    }


def follow(rig: Rig, world: World, count: int) -> None:
    """Let the agent handle the next events."""
    world.handle(*rig.take(count))


def held(world: World) -> dict[str, str]:
    return {uid: str(entry.held) for uid, entry in world.snapshots[-1].state.pods.items()}


@answers("PC-44")
def test_a_watch_that_falls_silent_is_left_and_what_went_meanwhile_is_released(
    case: Case, rig: Rig, world: World
) -> None:
    p1, p2, p3 = served("p1"), served("p2"), served("p3")
    settings = WatchSettings(silence_s=0.5)
    rig.serve(page(p1, p2), stalled(line("ADDED", p3)), page(p2, p3), stalled(), settings=settings)
    follow(rig, world, 3)
    assert held(world) == {"p1": "1-2", "p2": "3-4", "p3": "5-6"}
    metrics = exposition(
        lambda: world.snapshots[-1], OwnUse(lambda: 0, lambda: 0.0, None, rig.watch.silent_s)
    )
    began_s = time.monotonic()
    follow(rig, world, 3)  # unwell, the list, well
    took_s = time.monotonic() - began_s

    rig.time.monotonic += 77
    ages = re.findall(r"^numalet_source_silence_seconds (\S+)$", metrics().decode(), re.MULTILINE)
    usual = WatchSettings()
    compare(
        case,
        properties={
            "reconnect within client timeout": took_s < settings.silence_s + 5
            and usual.watch_most_s < usual.silence_s < FIVE_MINUTES_S * 1.2,
            "last_contact_age visible": [float(age) for age in ages] == [77.0],
            "pods deleted meanwhile are released": held(world) == {"p2": "3-4", "p3": "5-6"},
        },
    )


@answers("PC-45")
def test_after_410_the_list_says_who_has_gone(case: Case, rig: Rig, world: World) -> None:
    changed = served("p2", labels={"tier": "db"})
    rig.serve(
        page(served("p1"), served("p2"), version="100"),
        stream(EXPIRED),
        page(changed, version="200"),
        stalled(),
    )
    follow(rig, world, 2)
    before = held(world)
    follow(rig, world, 1)
    until(lambda: len(rig.server.requests) == 4)

    (known,) = world.snapshots[-1].pods
    compare(
        case,
        released=sorted(before.keys() - held(world).keys()),
        known=[known.uid],
        requests_at_most=len(rig.server.requests),
    )
    assert known.labels == {"tier": "db"}
    assert rig.server.requests[-1].query["resourceVersion"] == "200"
    assert len(rig.time.waits) == 1


@answers("PC-46")
@pytest.mark.parametrize("read_at_s", [0, 45])
def test_a_token_that_is_changed_is_used_in_time_and_nobody_moves(
    case: Case, rig: Rig, world: World, read_at_s: int
) -> None:
    token = rig.folder / "token"
    token.write_text("t1")
    rig.user = {"tokenFile": str(token)}
    rig.time.monotonic = float(read_at_s)
    accepted: list[float] = []
    done = threading.Event()

    def answer(handler: Handler) -> None:
        now_s = rig.time.monotonic
        token.write_text("t2" if now_s >= 50 else "t1")
        if now_s >= FIVE_MINUTES_S:
            done.set()
            stalled()(handler)
        elif not handler.headers["Authorization"].endswith("t1" if now_s < 60 else "t2"):
            status(401, "Unauthorized")(handler)
        else:
            accepted.append(now_s)
            rig.time.monotonic += 20 if "watch" in handler.path else 0
            (stream() if "watch" in handler.path else page(served("p1")))(handler)

    rig.serve(*[answer] * 100)
    follow(rig, world, 1)
    before, writes = held(world), len(world.kernel.writes)
    assert done.wait(30)
    while not rig.events.empty():
        follow(rig, world, 1)

    again_s = next(at_s for at_s in accepted if at_s >= 60) - 60
    compare(
        case,
        properties={
            "watch works again within 90 s": again_s < 90,
            "no grant changed": held(world) == before and len(world.kernel.writes) == writes,
        },
    )
    assert world.snapshots[-1].source == WELL


@answers("PC-47")
def test_a_static_pod_stays_what_it_is_whatever_mirror_it_has(case: Case, tmp_path: Path) -> None:
    ((name, entry),) = case.raw["pods"].items()
    digest = "abc" * 10 + "ab"  # the entry says abc; a kubelet's hash has 32 digits
    annotations = dict.fromkeys(entry["annotations"], digest)
    mirror, again = (
        served(name, uid, annotations=annotations) for uid in (entry["uid"], "another-uid")
    )
    world = KubeletWorld(rules(EIGHT), tmp_path)
    events: list[Event] = []
    known = KnownPods(events.append, parse_served)
    known.all([mirror])
    (listed,) = events
    assert isinstance(listed, PodsListed)
    world.handle(*events)
    ((uid, first),) = held(world).items()
    path = world.pod(KUBEPODS / f"pod{digest}")
    container = world.container(path, "a")
    world.handle(CgroupsChanged(path))
    world.kernel.writes.clear()

    events.clear()
    known.gone(mirror)
    known.changed(again)
    for event in events:
        world.handle(event)

    (of_entry,) = (text.partition("/cri-")[0] for text in case.raw["tree"])
    qos = listed.pods[0].qos
    assert qos is not None
    systemd = CgroupLayout(driver="systemd").pod(listed.pods[0], qos)
    compare(
        case,
        held={name: len(world.snapshots[-1].state.pods[PodUID(uid)].held)},
        properties={
            "cgroup path uses the hash": systemd.relative == of_entry.replace("abc", digest),
            "same CPUs after mirror re-creation": held(world) == {digest: first}
            and world.cpus(container) == first
            and world.kernel.writes == [],
        },
    )


RESTARTS_S, DOWN_S = 150.0, 30.0
AGENTS = 100


class Crowded:
    """An API server that is not there in its first half minute, and not after it was started anew."""

    def __init__(self) -> None:
        self.time = FakeTime()
        self.lists: Counter[int] = Counter()
        self.done = threading.Event()

    def answer(self, handler: Handler) -> None:
        now_s = self.time.monotonic
        since_start_s = now_s if now_s < RESTARTS_S else now_s - RESTARTS_S
        if now_s >= FIVE_MINUTES_S:
            self.done.set()
            stalled()(handler)
        elif since_start_s < DOWN_S:
            left = {"Retry-After": str(ceil(DOWN_S - since_start_s))}
            status(503, "ServiceUnavailable", headers=left)(handler)
        elif "watch" in handler.path:
            self.watch(handler, now_s)
        else:
            self.lists[int(now_s)] += 1
            page()(handler)

    def watch(self, handler: Handler, now_s: float) -> None:
        (lasts,) = re.findall(r"timeoutSeconds=(\d+)", handler.path)
        breaks = now_s < RESTARTS_S < now_s + int(lasts)
        self.time.monotonic = RESTARTS_S if breaks else now_s + int(lasts)
        answer: Answer = killed() if breaks else stream()
        answer(handler)


@answers("PC-51")
def test_a_crowd_of_agents_comes_back_little_by_little(case: Case, rig: Rig) -> None:
    """Their times do not depend on each other, so they are followed one after the other."""
    crowded = Crowded()
    server: ScriptedApiServer = rig.start_server(*[crowded.answer] * AGENTS * 20)
    kubeconfig = rig.kubeconfig(server.url)
    most, second = 0, Counter[int]()
    for seed in range(AGENTS):
        crowded.time, crowded.lists = FakeTime(monotonic=0.0), Counter()
        crowded.done.clear()
        watch = PodWatch(
            api=load_client(kubeconfig, monotonic_s=crowded.time.monotonic_s),
            node_name=f"node-{seed}",
            post=lambda _event: None,
            parse=parse_served,
            clock=crowded.time,
            wait=crowded.time.wait,
            uniform=random.Random(seed).uniform,
        )
        watch.start()
        assert crowded.done.wait(30)
        watch.close()
        most = max(most, crowded.lists.total())
        second += crowded.lists

    selectors = {request.query["fieldSelector"] for request in server.requests}
    assert selectors == {f"spec.nodeName=node-{seed}" for seed in range(AGENTS)}
    assert second.total() == 2 * AGENTS
    compare(
        case,
        properties={
            "list requests per agent <= 2 in 5 minutes": most <= 2,
            "no second with > 20 lists": max(second.values()) <= 20,
        },
    )
