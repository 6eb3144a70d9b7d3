"""Other CPU managers that come and go while the agent runs are told of, once each."""

import queue
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from agent.config import load
from agent.core.findings import Finding, Level, ok, problem, warning
from agent.node import procfs
from agent.node.rivals import rivals
from agent.place import why_only_observing
from agent.ports import Event, OtherManagersFound
from agent.rival_watch import Findings, RivalSettings, RivalWatch

from .made_up import MadeUpNode

KOORDLET = problem("cpu-managers", "koordlet runs (pid 7)", "remove it", subject="koordlet")
RESTARTED = problem("cpu-managers", "koordlet runs (pid 8)", "remove it", subject="koordlet")
KUBELET = problem("kubelet", "the kubelet is static", "change it", subject="kubelet")
BLIND = warning("processes", "processes cannot be seen", "mount /proc")
BLIND_TO_KUBELET = warning("kubelet", "its policy cannot be seen", "mount it")
SETTINGS = RivalSettings(interval_s=0.01, gone_after=3)
PATIENCE_S = 20.0


@dataclass
class World:
    """A node on which ``here`` is found."""

    here: Findings = ()
    looks: int = 0
    told: list[Finding] = field(default_factory=list)
    events: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)

    def __post_init__(self) -> None:
        self.watch = RivalWatch(self.find, why_not, settings=SETTINGS)

    def find(self) -> Findings:
        self.looks += 1
        return self.here

    def look(self, *here: Finding, times: int = 1) -> OtherManagersFound:
        self.here = here
        for _ in range(times - 1):
            self.watch.look()
        return self.watch.look()


def why_not(found: Findings) -> tuple[str, ...]:
    return tuple(f.sentence for f in found if f.level is Level.PROBLEM)


def test_who_comes_is_known_at_the_next_look() -> None:
    world = World()
    assert world.look() == OtherManagersFound()

    found = world.look(KOORDLET)

    assert found == OtherManagersFound(names=("koordlet",), why_not=("koordlet runs (pid 7)",))


def test_who_is_missing_has_gone_only_after_several_looks() -> None:
    world = World()
    before = world.look(KOORDLET)
    assert world.look(times=2) == before

    assert world.look() == OtherManagersFound()


def test_who_comes_back_in_between_was_never_gone() -> None:
    world = World()
    world.look(KOORDLET)
    for _ in range(3):
        assert world.look(times=2).names == ("koordlet",)
        assert world.look(RESTARTED).why_not == ("koordlet runs (pid 8)",)


def test_who_cannot_be_looked_for_has_not_gone() -> None:
    world = World()
    before = world.look(KOORDLET, KUBELET)

    assert world.look(BLIND, times=9).names == before.names
    assert world.look(BLIND_TO_KUBELET, times=3).names == ("kubelet",)


def test_what_cannot_be_seen_is_said_with_its_cure_and_logged_once() -> None:
    world = World()
    with capture_logs() as logs:
        found = world.look(BLIND, times=3)

    assert found.unseen == ("processes cannot be seen: mount /proc",)
    assert [line["what"] for line in logs] == ["processes cannot be seen"]


def test_another_numalet_that_holds_no_lock_is_in_the_log_only() -> None:
    world = World()
    with capture_logs() as logs:
        found = world.look(
            ok("numalet", "another numalet is there"), ok("kubelet", "fine"), times=3
        )

    assert found == OtherManagersFound()
    assert [line["what"] for line in logs] == ["another numalet is there"]


def test_changes_are_posted_and_each_newcomer_is_told_of_once() -> None:
    world = World()
    world.look(KUBELET)
    world.watch.start(world.events.put, world.told.append)
    with closing(world.watch):
        world.here = (KUBELET, KOORDLET)
        came = world.events.get(timeout=PATIENCE_S)
        world.here = (KOORDLET,)
        left = world.events.get(timeout=PATIENCE_S)

    assert isinstance(came, OtherManagersFound)
    assert isinstance(left, OtherManagersFound)
    assert (came.names, left.names) == (("kubelet", "koordlet"), ("koordlet",))
    assert world.told == [KUBELET, KOORDLET]


def test_a_look_that_fails_ends_neither_the_watch_nor_what_is_known() -> None:
    world = World()
    world.look(KOORDLET)
    answers = iter([RuntimeError("a bug"), RuntimeError("a bug")])

    def find() -> Findings:
        for error in answers:
            raise error
        return (KOORDLET, KUBELET)

    world.watch._find = find
    with closing(world.watch), capture_logs() as logs:
        world.watch.start(world.events.put, world.told.append)
        found = world.events.get(timeout=PATIENCE_S)

    assert isinstance(found, OtherManagersFound)
    assert found.names == ("koordlet", "kubelet")
    assert [line["event"] for line in logs].count("others_not_looked_for") == 2


@pytest.fixture
def watched(node: MadeUpNode) -> Iterator[tuple[MadeUpNode, "queue.SimpleQueue[Event]"]]:
    """A node of files that is watched as an agent does it."""
    procfs.use_proc_root(node.root / "proc")
    config, events = load(None), queue.SimpleQueue[Event]()
    watch = RivalWatch(
        lambda: rivals(node.root),
        lambda found: why_only_observing(found, config),
        settings=SETTINGS,
    )
    assert watch.look() == OtherManagersFound()
    watch.start(events.put, lambda _finding: None)
    with closing(watch):
        yield node, events


def following(events: "queue.SimpleQueue[Event]", *names: str) -> OtherManagersFound:
    """Return the first event in which these are named; a file may be replaced while it is read."""
    while True:
        event = events.get(timeout=PATIENCE_S)
        assert isinstance(event, OtherManagersFound)
        if event.names == names and not event.unseen:
            return event


def test_a_kubelet_that_turns_static_is_seen_and_its_end_too(
    watched: tuple[MadeUpNode, "queue.SimpleQueue[Event]"],
) -> None:
    node, events = watched
    file, other = (node.root / "var/lib/kubelet" / name for name in ("cpu_manager_state", "new"))
    none = file.read_text()

    other.write_text('{"policyName":"static"}')
    other.replace(file)
    came = following(events, "kubelet")
    other.write_text(none)
    other.replace(file)

    assert "numalet only observes, since the kubelet places containers itself" in came.why_not[0]
    assert following(events) == OtherManagersFound()
