"""Cases from the field about what is remembered on disk, and about leaving a node."""

import queue
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.giving_back import release
from agent.node.checkpoint import COPIES
from agent.ports import Event, PodsListed, Stop
from tests.cli.rig import DB, Cli
from tests.cli.test_run import Node, logged
from tests.reconciler.test_leaving import files
from tests.strategies import machine

from .answers import answers, compare
from .living import living
from .loader import Case
from .pods import app, pod, rules, sharing

P1 = pod(app("a", 2), uid="p1")
FOUR, EIGHT = (machine(cores_per_node=count, threads=1) for count in (4, 8))

LEGACY = b'{"policyName":"static","defaultCpuSet":"0,3-7","entries":{"p1":{"a":"1-2"}},'
"""How a kubelet's file begins: what follows can be read as either."""
ALTERED: Mapping[str, Callable[[bytes], bytes]] = {
    "version N-1 file": lambda data: data.replace(b'{"version":1,', b'{"version":0,'),
    "version N file": lambda data: data,
    "version N+1 file": lambda _: b'{"version":2,"payload":{"entries":{"p1":{}}},"digest":"b3"}\n',
    "file with checksum 0": lambda data: with_digest(data, b"0" * 64),
}


def with_digest(data: bytes, digest: bytes) -> bytes:
    """Return a checkpoint with another digest than its own."""
    return data.replace(data.split(b'"')[5], digest)


@pytest.fixture
def node(tmp_path: Path, numalet: Cli) -> Node:
    (tmp_path / "node").mkdir()
    node = Node(tmp_path / "node", numalet)
    (node.pods / "db.yaml").write_text(DB.read_text())
    node.once()
    return node


def started(node: Node, content: dict[str, bytes]) -> str:
    """Start on these copies, and say how that went."""
    for name, data in content.items():
        (node.state / name).write_bytes(data)
    ended = node.once()
    assert "default/latency-critical-db" in ended.out
    unchanged = {name: (node.state / name).read_bytes() for name in COPIES} == content
    told = [line["what"] for line in logged(ended) if line["event"] == "checkpoint"]
    if unchanged and any("nothing is enforced" in sentence for sentence in told):
        return "observe only, file kept aside unchanged"
    assert {path.read_bytes() for path in node.state.glob("*.damaged-*")} == (
        set(content.values()) if told else set()
    )
    return f"ended with {ended.status}" if ended.status else "ok"


@answers("PC-21")
def test_no_version_of_the_file_keeps_the_agent_from_starting_or_is_lost(
    case: Case, node: Node
) -> None:
    whole = {name: (node.state / name).read_bytes() for name in COPIES}
    startup = []
    for kind in case.raw["state"]["files"]:
        startup.append(started(node, {name: ALTERED[kind](data) for name, data in whole.items()}))
        for path in node.state.glob("checkpoint-*"):
            path.unlink()
    compare(case, startup=startup)


@answers("PC-24")
def test_of_a_file_that_is_rejected_nothing_is_taken(case: Case, tmp_path: Path) -> None:
    node = living(rules(EIGHT), tmp_path, P1)
    assert node.world.remembered()
    state, broken = tmp_path / "state", set()
    for name, in_front in zip(COPIES, (b"{", LEGACY), strict=True):
        data = (state / name).read_bytes()
        assert b'"entries":{"p1":' in data
        data = in_front + with_digest(data, b"ab" * 32).removeprefix(b"{")
        (state / name).write_bytes(data)
        broken.add(data)

    world = node.world
    world.boot()
    loaded = world.store().load()
    world.start()
    snapshot = world.listed()

    aside = {path.read_bytes() for path in state.glob("*.damaged-*")}
    compare(
        case,
        entries=dict(snapshot.state.pods),
        default=str(snapshot.state.default),
        startup="ok",
        properties={"bad_file_kept_aside": aside == broken},
    )
    assert loaded.remembered is None


@answers("PC-50")
def test_an_upgrade_changes_nothing_and_release_gives_all_back(case: Case, tmp_path: Path) -> None:
    """With systemd and a real kernel: ``tests/vm/test_service.py``."""
    node = living(rules(FOUR), tmp_path, P1, pod(sharing("b"), uid="s"))
    world, before = node.world, case.raw["cgroup_before"]
    assert node.said(before) == before
    state = world.snapshots[-1].state
    assert str(state.default) == case.raw["state"]["default"]
    stood = files(world)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    events.put(Stop("SIGTERM"))
    world.agent.run(events)
    after_sigterm = "cgroups unchanged" if files(world) == stood else "cgroups changed"

    world.kernel.may_unset = True
    world.kernel.writes.clear()
    given = release(world.kernel, world.journal(), CgroupPath("numalet.slice"))
    written = list(world.kernel.writes)
    again = release(world.kernel, world.journal(), CgroupPath("numalet.slice"))

    after = case.raw["expect"]["after_release"]
    compare(
        case,
        after_sigterm=after_sigterm,
        after_release=node.said(after),
        properties={
            "idempotent": not again.done and world.kernel.writes == written,
            "never_write_empty_cpuset": all(
                value.strip() or "populated 0" in world.text(path, "cgroup.events")
                for path, _, value in written
            ),
        },
    )
    assert (given.problems, again.problems) == ((), ())
    assert f"{node.at['p1/a']}/cpuset.cpus says 0-3" in "\n".join(given.notes)
    world.start()
    world.handle(PodsListed((P1,)))
    assert world.snapshots[-1].state.pods[P1.uid] == state.pods[P1.uid]
