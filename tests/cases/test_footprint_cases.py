"""Cases from the field about what the agent itself costs."""

import gc
import json
import time
from pathlib import Path

import psutil
from prometheus_client.parser import text_string_to_metric_families

from agent.core.admission import Admitted, admit
from agent.core.cpuset import CPUSet
from agent.node.procfs import own_rss_bytes
from agent.place import simulated_topology
from agent.ports import PodChanged, PodGone, PodsListed, Snapshot
from agent.report.metrics import OwnUse, exposition
from agent.sources.api_rules import parse_served
from tests.e2e.daemon import Home
from tests.reconciler.test_runtime_cgroups import KubeletWorld
from tests.report.rig import until
from tests.scratch import scratch_folder
from tests.sources.api_server import reply, stalled, status
from tests.sources.rig import Rig
from tests.strategies import machine

from .answers import answers, compare
from .loader import DATA, Case
from .pods import app, pod, rules

MIB = 1 << 20
EIGHT = machine(cores_per_node=8, threads=1)


def long_list(pods: int, ballast: int) -> bytes:
    """Return a PodList in which each pod has so many bytes that nobody here needs."""
    fields = [{"manager": "kubelet", "fieldsV1": {f"f:{'x' * 90}{i}": {} for i in range(90)}}]
    items = [
        {
            "metadata": {"name": f"p{i}", "uid": f"{i}", "managedFields": fields},
            "spec": {
                "containers": [
                    {"name": "c", "env": [{"name": f"E{n}", "value": "x" * 90} for n in range(90)]}
                ]
            },
            "status": {"phase": "Running"},
        }
        for i in range(pods)
    ]
    body = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items})
    assert len(body) >= pods * ballast
    return body.encode()


@answers("PC-48")
def test_long_lists_are_read_fast_and_leave_nothing_behind(case: Case, tmp_path: Path) -> None:
    """In a process of its own, for ten minutes: ``hack/soak``."""
    assert case.raw["events"] == ["100 lists"]
    pods, warm_up, lists = 250, 5, 100
    answer = reply(200, long_list(pods, ballast=20_000))
    rig = Rig(tmp_path)
    rig.parse = parse_served
    expired = status(410, "Expired")
    rig.serve(*[answer, expired] * (warm_up + lists), answer, stalled())
    try:
        began_s, before = 0.0, 0
        listed = 0
        while listed < warm_up + lists:
            (event,) = rig.take(1)
            if isinstance(event, PodsListed):
                listed += 1
                assert len(event.pods) == pods
            if listed == warm_up and not before:
                began_s, before = time.process_time(), own_rss_bytes()
        took_s, grown = time.process_time() - began_s, own_rss_bytes() - before
    finally:
        rig.close()
    (query,) = {request.query["fieldSelector"] for request in rig.server.requests}
    assert query == "spec.nodeName=node-a"
    compare(
        case,
        properties={
            "rss growth < 20 MiB after 100 lists": grown < 20 * MIB,
            "list of 250 pods handled in < 1 s": took_s / lists < 1,
        },
    )


def series(snapshot: Snapshot) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Return the names and labels of all that is exported."""
    text = exposition(lambda: snapshot, OwnUse(lambda: 0, lambda: 0.0))().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@answers("PC-49")
def test_pods_that_have_gone_leave_no_series(case: Case, tmp_path: Path) -> None:
    world = KubeletWorld(rules(EIGHT), tmp_path)

    def live(numbers: range) -> None:
        """Of 50 pods three are placed, the others rejected."""
        pods = [pod(app("a", 2), uid=f"p{i}") for i in numbers]
        world.agent.handle(*map(PodChanged, pods))
        assert len(world.snapshots[-1].state.pods) == 3
        during.update(series(world.snapshots[-1]))
        world.agent.handle(*(PodGone(each.uid) for each in pods))

    during: set[object] = set()
    world.listed()
    live(range(50))
    before = series(world.snapshots[-1])
    for first in range(50, 1050, 50):
        live(range(first, first + 50))
    after = series(world.snapshots[-1])
    assert world.snapshots[-1].pods == ()
    compare(
        case,
        properties={"series count after == series count before": len(after) == len(before)},
    )
    assert after == before == during


MANIFEST = """\
apiVersion: v1
kind: Pod
metadata: {{name: p{i}}}
spec:
  containers:
  - {{name: a, resources: {{limits: {{cpu: {cpus}, memory: 64Mi}}}}}}
  - {{name: b, resources: {{limits: {{cpu: 50m, memory: 64Mi}}}}}}
"""


def manifest(i: int) -> str:
    """Every third pod has CPUs of its own."""
    return MANIFEST.format(i=i, cpus=2 if i % 3 == 0 else "100m")


@answers("PC-52")
def test_a_large_machine_full_of_pods_costs_little(case: Case) -> None:
    """Without the simulated kernel in it, and on Kubernetes: ``hack/soak``."""
    file, _, _ = case.raw["topology"].removeprefix("file ").partition(",")
    description = DATA / f"topologies/{file}.yaml"
    pods, changes = 250, 200
    rss, threads = 0, 0
    with scratch_folder() as folder:
        home = Home(Path(folder), machine=description)
        for i in range(pods):
            (home.pods / f"p{i}.yaml").write_text(manifest(i))
        with home.daemon() as daemon:
            daemon.until_ready()
            process = psutil.Process(daemon.process.pid)
            for i in range(changes):
                (home.folder / "new").write_text(manifest(pods + i))
                (home.folder / "new").rename(home.pods / f"p{pods + i}.yaml")
                (home.pods / f"p{i}.yaml").unlink()
                rss = max(rss, process.memory_info().rss)
                threads = max(threads, process.num_threads())
            wanted = {f"p{i}" for i in range(changes, pods + changes)}
            until(lambda: len(daemon.logged("pod_released")) == changes, timeout_s=60)
            until(lambda: len(daemon.logged("pod_admitted")) == pods + changes, timeout_s=60)
            until(lambda: daemon.pods().keys() == wanted)
            assert all(told["admitted"] for told in daemon.pods().values())
            rss = max(rss, process.memory_info().rss)
            assert daemon.end(within_s=10) == 0
    compare(
        case,
        properties={
            "rss < 150 MiB": 0 < rss < 150 * MIB,
            "threads <= 8": 0 < threads <= 8,
            "one decision < 50 ms at 384 CPUs": slowest_decision_s(description, pods) < 0.05,
        },
    )


def slowest_decision_s(description: Path, pods: int) -> float:
    """Fill a machine, one pod after the other, and return the CPU time of the longest decision."""
    topology = simulated_topology(description)
    assert topology.cpus == CPUSet(range(384))
    node = rules(topology, policy="best-effort", scope="pod")
    state, slowest_s, admitted = node.initial_state(), 0.0, 0
    for i in range(pods):
        new = pod(app("a", 2, gib=0.25), app("b", 1, gib=0.25), uid=f"p{i}")
        gc.disable()  # it would go through all that other tests have left
        began_s = time.thread_time()
        decision = admit(node, state, new)
        slowest_s = max(slowest_s, time.thread_time() - began_s)
        gc.enable()
        state, admitted = decision.state, admitted + isinstance(decision, Admitted)
    assert 100 < admitted < pods
    return slowest_s
