"""What is told over real HTTP, by the thread that tells it."""

import json
import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.admission import Admitted, admit, remove
from agent.core.cpuset import CPUSet
from agent.core.pods import CPU, Container, Pod, PodUID, QosClass
from agent.core.policy import Policy
from agent.core.startup import start
from agent.place import SystemClock
from agent.ports import ApiAnswer, CgroupsChanged, PodChanged, PodGone, Rejection, Snapshot
from agent.report.events import PodEvents
from agent.report.evictions import Evictions
from agent.report.noderesourcetopology import TopologyExport, load_fingerprint
from agent.report.outbound import Outbound, OutboundSettings
from agent.report.outbox import Teller
from agent.report.placement import PLACEMENT, PlacementAnnotations
from agent.simulation.clock import SimulatedClock
from agent.sources.api_access import load_client
from agent.sources.api_requests import ApiRequests
from tests.reconciler.rig import KUBEPODS, World, equal, exclusive_pod, two_sockets
from tests.reconciler.test_runtime_cgroups import KubeletWorld, Name
from tests.replay.recording import API
from tests.sources.api_server import Answer, reply, silence
from tests.sources.rig import Rig
from tests.sources.write_server import Write, WriteServer
from tests.strategies import machine

from .api_model import NODE, ApiModel
from .rig import empty_snapshot, snapshot_of, until
from .telling import Telling

IMPATIENT = OutboundSettings(
    look_interval_s=0.01, rate_per_s=1000, burst=100, backoff_first_s=0.01, backoff_most_s=0.05
)
DB = exclusive_pod("db", 2)
BIG = replace(exclusive_pod("big", 64), priority=0, controller="ReplicaSet")


def http(answer: ApiAnswer) -> Answer:
    headers = {"Retry-After": f"{answer.wait_s:.0f}"} if answer.wait_s else {}
    if isinstance(answer.body, str):
        return reply(answer.code, answer.body.encode(), headers)
    body = {name: value for name, value in answer.body.items() if name != "owners"}
    return reply(answer.code, body, headers)


class Server(WriteServer):
    """An `ApiModel` behind HTTP."""

    def __init__(self, model: ApiModel) -> None:
        self._model = model
        self._lock = threading.Lock()
        super().__init__(self._reply)

    def _reply(self, write: Write) -> Answer:
        with self._lock:
            return http(
                self._model.ask(
                    write.method, write.target, write.body, content_type=write.content_type
                )
            )


def tellers(clock: SimulatedClock | SystemClock) -> tuple[Teller, ...]:
    return (
        PodEvents(NODE, empty_snapshot()),
        PlacementAnnotations(),
        Evictions(clock, most_per_hour=10, patience_s=0.0),
        TopologyExport(NODE, load_fingerprint()),
    )


@contextmanager
def telling(
    folder: Path, server: WriteServer, *, settings: OutboundSettings = IMPATIENT
) -> Iterator[Outbound]:
    """Run the thread against a server."""
    clock = SystemClock()
    api = ApiRequests(load_client(Rig(folder).kubeconfig(server.url)), clock)
    outbound = Outbound(api, tellers(clock), clock, settings=settings)
    outbound.start()
    with closing(server), closing(outbound):
        yield outbound


def test_all_that_is_to_be_told_arrives(tmp_path: Path) -> None:
    model = ApiModel()
    model.add(DB, BIG)
    with telling(tmp_path, Server(model)) as outbound:
        outbound.publish(snapshot_of(DB, BIG))
        until(lambda: sum(outbound.numbers().outcomes.values()) == 5)
    assert outbound.numbers().outcomes == {
        ("event", "said"): 2,
        ("annotation", "said"): 1,
        ("eviction", "said"): 1,
        ("topology", "said"): 1,
    }
    assert {event["reason"] for event in model.events.values()} == {
        "Placed",
        "TopologyAffinityError",
    }
    assert '"cpus":"1-2"' in model.pods[DB.full_name].annotations[PLACEMENT]
    assert model.pods[BIG.full_name].is_terminating
    assert model.topology is not None


def test_who_has_a_kernel_of_his_own_hears_of_it_from_the_server(tmp_path: Path) -> None:
    model, world = ApiModel(), KubeletWorld(two_sockets(), tmp_path)
    model.add(DB)
    with telling(tmp_path, Server(model)) as outbound:
        sandbox = world.container(world.pod(KUBEPODS / "poddb"), None, named=False)
        outbound.publish(world.listed(DB))
        until(lambda: len(model.events) == 1)
        world.bundles.known[sandbox.name] = Name(None, DB.uid, "kata-qemu")
        outbound.publish(world.handle(CgroupsChanged(KUBEPODS / "poddb")))
        until(lambda: len(model.events) == 2)
    told = {event["reason"]: event["message"] for event in model.events.values()}
    assert "let a runtime such as runc or crun run it" in told["UnsupportedRuntime"]
    assert model.of("POST") == [asked for asked in model.of("POST") if "events" in asked.parts]


def test_these_rights_are_asked_for_and_no_others(tmp_path: Path) -> None:
    model = ApiModel()
    model.add(DB, BIG)
    with telling(tmp_path, Server(model)) as outbound:
        outbound.publish(snapshot_of(DB, BIG))
        until(lambda: sum(outbound.numbers().outcomes.values()) == 5)
    nrt = "topology.node.k8s.io", "noderesourcetopologies"
    assert set().union(*(asked.rights() for asked in model.requests)) == {
        ("", "events", "create"),
        ("", "pods", "patch"),
        ("", "pods/eviction", "create"),
        ("", "nodes", "get"),
        (*nrt, "get"),
        (*nrt, "create"),
        (*nrt, "patch"),
    }


def test_a_server_that_comes_back_is_told_everything(tmp_path: Path) -> None:
    model = ApiModel()
    model.add(DB)
    down = threading.Event()
    down.set()
    model.refuse = lambda _asked: ApiAnswer(code=503, body="no") if down.is_set() else None
    with telling(tmp_path, Server(model)) as outbound:
        outbound.publish(snapshot_of(DB))
        until(lambda: "event" in outbound.numbers().troubles)
        down.clear()
        until(lambda: outbound.numbers().pending == 0)
    assert outbound.numbers().troubles == {}
    assert PLACEMENT in model.pods[DB.full_name].annotations
    assert len(model.events) == 1


def test_a_server_that_hangs_on_every_write_delays_no_cgroup_write(tmp_path: Path) -> None:
    hung = threading.Event()
    server = WriteServer(lambda _write: silence(hung))
    with telling(tmp_path, server) as outbound:
        world = World(two_sockets(), tmp_path)
        world.listed(DB)
        outbound.publish(world.snapshots[-1])
        assert hung.wait(10)
        for number in range(50):
            pod = exclusive_pod(f"p{number}", 1 + number % 3)
            outbound.publish(world.handle(PodChanged(pod)))
            path = world.layout.pod(pod, QosClass.GUARANTEED)
            assert len(CPUSet.parse(world.text(path, "cpuset.cpus"))) == 1 + number % 3
            outbound.publish(world.handle(PodGone(pod.uid)))
        assert len(server.writes) == 1  # all of that happened within the first request
        assert outbound.numbers().outcomes == {}


class Churn:
    """A node with 250 pods of four containers, of which every fifth asks for CPUs of its own."""

    def __init__(self, model: ApiModel) -> None:
        self.model = model
        self.rules = start(
            machine(sockets=2, cores_per_node=64, threads=1),
            Policy(
                topology_policy="best-effort",
                reserved_cpus=CPUSet([0]),
                memory_policy="None",
                node_reservation={CPU: 1000},
            ),
        )
        self.state = self.rules.initial_state()
        self.rejections: dict[PodUID, Rejection] = {}
        self.pods: dict[int, Pod] = {}
        self.born = self.asking = 0
        for number in range(250):
            self.replace(number)

    def replace(self, number: int) -> None:
        """End a pod, if it is there, and start another one of its name."""
        former = self.pods.get(number)
        if former is not None:
            self.state = remove(self.state, former.uid)
            self.rejections.pop(former.uid, None)
        milli = 1000 if number % 5 == 0 else 100
        containers = (Container(name=f"c{c}", resources=equal(milli)) for c in range(4))
        self.born += 1
        uid, name = PodUID(f"u{self.born}"), f"p{number}"
        pod = Pod(uid=uid, name=name, app_containers=tuple(containers))
        self.model.add(pod)
        self.pods[number] = pod
        self.asking += number % 5 == 0
        verdict = admit(self.rules, self.state, pod)
        self.state = verdict.state
        if not isinstance(verdict, Admitted):
            self.rejections[pod.uid] = Rejection(verdict.reason, verdict.message)

    def snapshot(self) -> Snapshot:
        """Return what the agent publishes, with the annotations that the watch shows."""
        return replace(
            empty_snapshot(),
            ready=True,
            rules=self.rules,
            state=self.state,
            pods=tuple(seen(self.model, pod) for pod in self.pods.values()),
            rejections=dict(self.rejections),
        )


@pytest.mark.parametrize("answers", [True, False])
def test_ten_minutes_of_churn_are_no_storm(*, answers: bool) -> None:
    model, clock = ApiModel(), SimulatedClock()
    if not answers:
        model.refuse = lambda _asked: ApiAnswer(code=504, body="")
    told = Telling(model, *tellers(clock), clock=clock)
    churn, dice = Churn(model), random.Random(1)  # a history like any other
    for _second in range(600):
        churn.replace(dice.randrange(250))
        told.outbound.publish(churn.snapshot())
        told.run(1.0)
    told.run(120)
    numbers = told.outbound.numbers()
    assert {kind for kind, _ in numbers.outcomes} <= {"event", "annotation", "topology"}
    if answers:
        told_of = [event["involvedObject"]["uid"] for event in model.events.values()]
        assert len(set(told_of)) == len(told_of) == len(model.of("POST"))
        assert len(told_of) <= churn.asking
        assert len(model.of("PATCH")) <= churn.asking + 720 / 5
        assert numbers.pending == 0
    else:
        assert len(model.requests) < 3 * 20  # one a minute of each kind, in the end
        assert numbers.pending <= 2 * churn.asking + 1


def test_a_burst_of_snapshots_is_told_once_by_the_thread(tmp_path: Path) -> None:
    model, dice = ApiModel(), random.Random(2)  # a history like any other
    churn = Churn(model)
    with telling(tmp_path, Server(model)) as outbound:
        for _change in range(300):
            churn.replace(dice.randrange(250))
            outbound.publish(churn.snapshot())
        last = churn.snapshot()
        until(lambda: outbound.numbers().outcomes.get(("topology", "said"), 0) > 0)
        until(lambda: last_is_told(model, last))
    assert len(model.of("POST")) == len(model.events) <= churn.asking


def last_is_told(model: ApiModel, snapshot: Snapshot) -> bool:
    """Tell whether every pod that was placed or rejected in the end has its event."""
    told = {event["involvedObject"]["uid"] for event in dict(model.events).values()}
    return {*snapshot.state.pods, *snapshot.rejections} <= told


def seen(model: ApiModel, pod: Pod) -> Pod:
    """Return a pod as the watch would show it."""
    annotations = model.pods[pod.full_name].annotations
    return pod if pod.annotations == annotations else replace(pod, annotations=dict(annotations))


@pytest.mark.parametrize(
    ("kind", "name", "outcome"),
    [
        ("event", "event.core.full", "said"),
        ("event", "403.event", "postponed"),
        ("annotation", "annotation.merge", "said"),
        ("annotation", "annotation.wrong-uid", "refused"),
        ("annotation", "403.patch-pod", "postponed"),
        ("annotation", "429.too-many-requests", "unanswered"),
        ("annotation", "401.bad-token", "unanswered"),
        ("eviction", "eviction.201", "said"),
        ("eviction", "eviction.404", "said"),
        ("eviction", "eviction.409-uid", "said"),
        ("eviction", "eviction.429-pdb", "postponed"),
        ("eviction", "eviction.429-pdb-not-observed", "postponed"),
        ("eviction", "eviction.500-two-pdbs", "postponed"),
        ("eviction", "403.eviction", "postponed"),
        ("topology", "nrt.apply.create", "said"),
        ("topology", "nrt.apply.same", "said"),
        ("topology", "nrt.apply.conflict-back", "postponed"),
        ("topology", "nrt.apply.unknown-field", "postponed"),
        ("topology", "nrt.apply.invalid", "refused"),
        ("topology", "404.nrt-no-crd.apply", "postponed"),
        ("topology", "403.nrt", "postponed"),
    ],
)
def test_a_recorded_answer_is_taken_for_what_it_is(
    tmp_path: Path, kind: str, name: str, outcome: str
) -> None:
    exchange = json.loads((API / f"{name}.json").read_text())
    answer = exchange["response"]
    body, headers = answer["body"], dict(answer["headers"])
    recorded = reply(
        answer["status"],
        body.encode() if isinstance(body, str) else body,
        {"Retry-After": headers["Retry-After"]} if "Retry-After" in headers else {},
    )
    about = {"event": "/events", "annotation": "/pods/db", "eviction": "/eviction"}
    path = about.get(kind, "/noderesourcetopologies/")
    looks = kind == "topology" and exchange["request"]["method"] == "GET"
    model = ApiModel()
    model.add(DB, BIG)

    def answered(write: Write) -> Answer:
        if path in write.path and (write.method == "GET") == looks:
            return recorded
        return http(
            model.ask(write.method, write.target, write.body, content_type=write.content_type)
        )

    with telling(tmp_path, WriteServer(answered)) as outbound:
        outbound.publish(snapshot_of(DB, BIG))
        until(lambda: bool(outbound.numbers().outcomes.get((kind, outcome))))
