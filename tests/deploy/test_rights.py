"""The roles in ``deploy/`` give what the agent's requests need, and nothing that none needs."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from agent.ports import ApiAnswer, Snapshot
from agent.report.events import PodEvents
from agent.report.evictions import PATIENCE_S, Evictions
from agent.report.noderesourcetopology import TopologyExport
from agent.report.outbox import Teller
from agent.report.placement import PlacementAnnotations
from agent.simulation.clock import SimulatedClock
from agent.sources.configz import Configz
from tests.reconciler.rig import exclusive_pod
from tests.replay.recording import API
from tests.report.rig import empty_snapshot, snapshot_of
from tests.sources.api_server import bookmark, page, stalled
from tests.sources.rig import Rig

from .rights import Right, applied_rights, right_of, rights_in
from .tools import CHART, DEPLOY, by_name, composed, documents, templated

NODE = "node-a"


@dataclass
class Requests:
    """An `agent.ports.ApiServer` that knows a node, lets everything be done, and remembers it."""

    rights: set[Right] = field(default_factory=set)

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        content_type: str = "application/json",
    ) -> ApiAnswer:
        parts = urlsplit(path)
        right = right_of(method, parts.path, dict(parse_qsl(parts.query)))
        applies = content_type == "application/apply-patch+yaml"
        self.rights |= applied_rights(right) if applies else {right}
        if method == "GET" and right.resource == "nodes":
            node = {"metadata": {"name": NODE, "uid": "uid-of-the-node"}}
            return ApiAnswer(code=HTTPStatus.OK, body=node)
        if method == "GET":
            return ApiAnswer(code=HTTPStatus.NOT_FOUND, body={"kind": "Status", "details": {}})
        return ApiAnswer(code=HTTPStatus.CREATED, body=body or {})


def life() -> Sequence[Snapshot]:
    """What an agent publishes while one pod is placed, another is refused, and the first one goes."""
    placed = exclusive_pod("placed", 2)
    too_large = replace(exclusive_pod("too-large", 64), priority=0, controller="ReplicaSet")
    return (
        empty_snapshot(),
        snapshot_of(placed),
        snapshot_of(placed, too_large),
        snapshot_of(too_large),
    )


def asked_by(teller: Teller, clock: SimulatedClock | None = None) -> set[Right]:
    """Return the rights that a teller needs for all that it says of a life."""
    server, clock = Requests(), clock or SimulatedClock(start_s=0.0)
    for snapshot in (*life(), life()[-1]):
        for message in teller.look(snapshot, clock.monotonic_s()):
            message.say(server)
        clock.advance(PATIENCE_S)
    assert server.rights
    return server.rights


def asked_by_evictions() -> set[Right]:
    clock = SimulatedClock(start_s=0.0)
    return asked_by(Evictions(clock, most_per_hour=10), clock)


def asked_by_configz() -> set[Right]:
    server = Requests()
    Configz(server, NODE, SimulatedClock(start_s=0.0)).ask()
    return server.rights


@pytest.fixture
def watching(tmp_path: Path) -> Iterator[set[Right]]:
    """The rights that the source of pods needs: those of its requests to a scripted server."""
    with closing(Rig(tmp_path)) as rig:
        rig.serve(page(), stalled(bookmark("101")))
        rig.take(2)  # the list, and that it watches
        yield {right_of("GET", r.path, r.query) for r in rig.server.requests}


TELLERS: Mapping[str, Callable[[], set[Right]]] = {
    "placement-annotation": lambda: asked_by(PlacementAnnotations()),
    "node-resource-topology": lambda: asked_by(TopologyExport(NODE, None)),
    "evict": asked_by_evictions,
    "configz": asked_by_configz,
}
"""What each component is for."""

VALUES = {
    "placement-annotation": "config.agent.placementAnnotation=true",
    "node-resource-topology": "config.agent.nodeResourceTopology=true",
    "evict": "config.agent.onRejection=evict",
    "configz": "configz=true",
}
"""The chart's word for each."""


def base_rights() -> list[Right]:
    role = documents((DEPLOY / "base/cluster-role.yaml").read_text())[0]
    return rights_in(role["rules"])


def role_of(text: str) -> list[Right]:
    return rights_in(by_name(documents(text))["ClusterRole", "numalet"]["rules"])


def test_the_base_gives_what_watching_and_telling_need_and_nothing_else(
    watching: set[Right],
) -> None:
    needed = watching | asked_by(PodEvents(NODE, empty_snapshot()))

    assert sorted(base_rights()) == sorted(needed)


@pytest.mark.parametrize("name", TELLERS)
def test_a_component_adds_what_its_purpose_needs_and_nothing_else(
    name: str, tmp_path: Path
) -> None:
    given = role_of(composed(tmp_path, name))

    assert sorted(given) == sorted([*base_rights(), *TELLERS[name]()])


@pytest.mark.parametrize("name", TELLERS)
def test_the_chart_gives_each_right_with_what_needs_it(name: str) -> None:
    given = role_of(templated("--set", VALUES[name]))

    assert sorted(given) == sorted([*base_rights(), *TELLERS[name]()])


def test_the_chart_gives_no_right_to_events_where_none_are_told() -> None:
    given = role_of(templated("--set", "config.agent.events=false"))

    assert set(base_rights()) - set(given) == {Right("", "events", "create")}


@pytest.mark.parametrize(
    ("path", "count"),
    [(DEPLOY / "base/cluster-role.yaml", 2), (CHART / "templates/cluster-role.yaml", 7)],
    ids=["base", "chart"],
)
def test_no_rule_without_its_reason(path: Path, count: int) -> None:
    lines = path.read_text().splitlines()
    rules = [i for i, line in enumerate(lines) if line.startswith(("- apiGroups", "- {apiGroups"))]

    assert len(rules) == count
    assert all(lines[i - 1].startswith("#") for i in rules)


def test_a_real_server_took_what_needs_these_rights_from_a_role_with_no_more() -> None:
    recorded = json.loads((API / "rbac.clusterrole.json").read_text())
    needed = {right for tell in TELLERS.values() for right in tell()} | set(base_rights())
    # The one was recorded with a role of its own, the other not at all.
    apart = {Right("", "pods", "patch"), Right("", "nodes/proxy", "get")}

    assert needed - apart <= set(rights_in(recorded["request"]["body"]["rules"]))


@pytest.mark.parametrize(
    ("method", "target", "right"),
    [
        ("GET", "/api/v1/pods?watch=true", Right("", "pods", "watch")),
        ("GET", "/api/v1/pods?limit=5", Right("", "pods", "list")),
        ("GET", "/api/v1/nodes/a", Right("", "nodes", "get")),
        ("GET", "/api/v1/namespaces/numalet", Right("", "namespaces", "get")),
        ("POST", "/api/v1/namespaces/a/events", Right("", "events", "create")),
        ("POST", "/api/v1/namespaces/a/pods/b/eviction", Right("", "pods/eviction", "create")),
        ("GET", "/api/v1/nodes/a/proxy/configz", Right("", "nodes/proxy", "get")),
        ("PATCH", "/api/v1/nodes/a/status", Right("", "nodes/status", "patch")),
        (
            "PATCH",
            "/apis/topology.node.k8s.io/v1alpha2/noderesourcetopologies/a",
            Right("topology.node.k8s.io", "noderesourcetopologies", "patch"),
        ),
    ],
)
def test_a_request_s_right_is_what_rbac_asks_for(method: str, target: str, right: Right) -> None:
    parts = urlsplit(target)

    assert right_of(method, parts.path, dict(parse_qsl(parts.query))) == right
