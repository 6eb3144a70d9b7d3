import shutil
import subprocess
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent import __version__
from agent.core.cgroups import CgroupPath
from agent.core.pods import Container, Pod
from agent.measures import ConfinementReport, MemoryReport, Windows
from agent.ports import Rejection, Snapshot
from agent.report.metrics import OwnUse, exposition
from tests.reconciler.rig import equal, exclusive_pod, shared_pod
from tests.report.rig import Told, empty_snapshot, snapshot_of, without
from tests.strategies import GI

POOL = replace(
    exclusive_pod("pool", 2),
    budget=equal(4000, 4),
    app_containers=(Container(name="db", resources=equal(2000)), Container(name="side")),
)
PODS: tuple[Pod, ...] = (exclusive_pod("a", 3), POOL, shared_pod("s"), exclusive_pod("big", 16))
BUSY = replace(
    snapshot_of(*PODS),
    rejections={PODS[3].uid: snapshot_of(*PODS).rejections[PODS[3].uid]},
    rejected_inputs={"x.yaml:1": 'bad "quotes"\nand lines'},
    complaints={PODS[0].uid: Rejection("TopologyAffinityError", "no room")},
    other_managers=("koordlet",),
    problems=("cannot write",),
    unenforced=frozenset({PODS[0].uid, PODS[3].uid}),
    writes={"cpuset.cpus": 12, "cpu.max": 3},
    drift={"foreign_write": 2},
    decisions={"admitted": 3, "TopologyAffinityError": 1},
    checkpoints=4,
    taken_at_s=100.0,
    memory=MemoryReport(
        moves={CgroupPath("a"): 93.0, CgroupPath("b"): None, CgroupPath("c"): None},
        moved_bytes=5 * GI,
        left_behind_bytes=4096,
        headroom_bytes={"0": -GI, "0-1": 3 * GI},
        shortages={"0": "NUMA nodes 0 have too little"},
        widened=(CgroupPath("d"), CgroupPath("e")),
    ),
    confinement=ConfinementReport(
        windows={"pod": Windows.of((0.01, 0.1)).with_one(0.01).with_one(0.02).with_one(7.0)},
        found={("pod", "running"): 1, ("pod", "nothing"): 2},
        watch_troubles=3,
    ),
)

Samples = dict[tuple[str, tuple[str, ...]], float]


def text_of(snapshot: Snapshot) -> str:
    return exposition(Told(snapshot).current, OwnUse(lambda: 12_345_678, lambda: 1.5))().decode()


def samples(snapshot: Snapshot) -> Samples:
    return {
        (sample.name.removeprefix("numalet_"), tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text_of(snapshot))
        for sample in family.samples
    }


def test_every_family_is_ours_and_says_what_it_is() -> None:
    for family in text_string_to_metric_families(text_of(BUSY)):
        assert family.name.startswith("numalet_")
        assert family.documentation.endswith(".")
        assert family.type in ("gauge", "counter", "histogram")


@pytest.mark.parametrize("snapshot", [empty_snapshot(), BUSY], ids=["new", "busy"])
def test_promtool_complains_of_nothing_but_the_kubelets_own_name(snapshot: Snapshot) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus)")
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=text_of(snapshot),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stdout + checked.stderr == (
        "numalet_cpu_manager_exclusive_cpu_allocation_count "
        'non-histogram and non-summary metrics should not have "_count" suffix\n'
    )


def test_numbers_are_those_of_the_node() -> None:
    found = samples(BUSY)
    expected = {
        ("build_info", (__version__,)): 1,
        ("resident_memory_bytes", ()): 12_345_678,
        ("pods", ("admitted",)): 3,
        ("pods", ("rejected",)): 1,
        ("containers", ("exclusive",)): 2,
        ("containers", ("pod-shared",)): 1,
        ("containers", ("node-shared",)): 2,
        ("containers", ("unsupported-runtime",)): 0,
        ("cpu_manager_shared_pool_size_millicores", ()): 9000,
        ("cpu_manager_allocation_per_numa", ("0",)): 7,
        ("cpu_manager_allocation_per_numa", ("1",)): 0,
        ("memory_manager_free_bytes", ("0", "memory")): 10.5 * GI,
        ("memory_manager_free_bytes", ("1", "memory")): 16 * GI,
        ("ready", ()): 1,
        ("observe_only", ()): 0,
        ("source_healthy", ()): 1,
        ("rejected_inputs", ()): 1,
        ("demands_refused", ()): 1,
        ("other_cpu_manager", ("koordlet",)): 1,
        ("problems", ()): 1,
        ("unenforced_pods", ()): 2,
        ("topology_manager_admission_requests_total", ()): 4,
        ("admission_rejections_total", ("TopologyAffinityError",)): 1,
        ("cgroup_writes_total", ("cpuset.cpus",)): 12,
        ("cgroup_writes_total", ("cpu.max",)): 3,
        ("drift_total", ("foreign_write",)): 2,
        ("checkpoints_total", ()): 4,
    }
    assert {key: found[key] for key in expected} == expected


def test_moving_memory_and_shortages_are_numbers() -> None:
    found = samples(BUSY)
    expected = {
        ("memory_moves_in_flight", ()): 1,
        ("memory_moves_waiting", ()): 2,
        ("memory_move_age_seconds", ()): 7,
        ("memory_moved_bytes_total", ()): 5 * GI,
        ("memory_left_behind_bytes", ()): 4096,
        ("memory_headroom_bytes", ("0",)): -GI,
        ("memory_headroom_bytes", ("0-1",)): 3 * GI,
        ("memory_shortages", ()): 1,
        ("memory_widened", ()): 2,
    }
    assert {key: found[key] for key in expected} == expected


def test_windows_are_a_histogram() -> None:
    found = samples(BUSY)
    expected = {
        ("confinement_window_seconds_bucket", ("pod", "0.01")): 1,
        ("confinement_window_seconds_bucket", ("pod", "0.1")): 2,
        ("confinement_window_seconds_bucket", ("pod", "+Inf")): 3,
        ("confinement_window_seconds_count", ("pod",)): 3,
        ("confinement_window_seconds_sum", ("pod",)): pytest.approx(7.03),
        ("confined_cgroups_total", ("pod", "running")): 1,
        ("confined_cgroups_total", ("pod", "nothing")): 2,
        ("cgroup_watch_troubles_total", ()): 3,
    }
    assert {key: found[key] for key in expected} == expected


def test_no_series_is_left_of_a_pod_that_is_gone() -> None:
    gone = snapshot_of(*PODS)
    for pod in PODS:
        gone = without(gone, pod)
    fresh = replace(empty_snapshot(), ready=True, source=gone.source)
    assert samples(gone) == samples(fresh)


def test_no_series_names_a_pod() -> None:
    # Names of pods come without end; what they have is told by `numalet status`.
    labels = {label for _, values in samples(BUSY) for label in values}
    assert labels.isdisjoint(pod.name for pod in PODS)
    assert labels.isdisjoint(c.name for pod in PODS for c in pod.containers)


def test_how_long_a_source_has_been_silent_is_told_where_there_is_one_that_speaks() -> None:
    silent = OwnUse(lambda: 0, lambda: 0.0, source_silent_s=lambda: 12.5)
    text = exposition(Told(BUSY).current, silent)().decode()
    assert "\nnumalet_source_silence_seconds 12.5\n" in text
    assert "silence" not in text_of(BUSY)


def test_how_old_the_last_pass_is_is_a_number() -> None:
    own = OwnUse(lambda: 0, lambda: 0.0, pass_age_s=lambda: 2.5)
    text = exposition(Told(BUSY).current, own)().decode()
    assert "\nnumalet_last_pass_age_seconds 2.5\n" in text


def test_before_the_first_list_all_is_there_but_zero() -> None:
    found = samples(empty_snapshot())
    assert found["ready", ()] == 0
    assert found["source_healthy", ()] == 0
    assert found["pods", ("admitted",)] == 0
