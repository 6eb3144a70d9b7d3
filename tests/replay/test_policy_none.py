"""Under a kubelet of policy none, numalet gives what the native managers give the same pods.

Two recordings meet here: what happened on the day `none`, and who had which CPUs on the day
`static`.  The pods are the same but for one number: `side` of `guaranteed` asks for a whole CPU in
`none`, and is exclusive, and for 500m in `static`.  So the day is lived through as it was, and once
more with that number as in `static`.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.cpuset import CPUSet
from agent.core.plan import CPUS_FILE as CPUS
from agent.core.pods import PodUID, QosClass
from agent.node.cgroup_layout import container_id
from agent.ports import GONE

from .recording import Line, day, names
from .rig import Moment, Replay, guest, rules

Placed = Mapping[tuple[str, str], str]
"""CPUs by the names of pod and container."""

DB = "latency-critical-db"
SHARED = ("burstable", "app")
ALL_RUN = {"none": [f"{n:02}" for n in range(4, 19)], "cgroupfs": ["02", "03"]}
"""The moments from all pods running to the last one before the first resize."""


@pytest.fixture(scope="module")
def native() -> Placed:
    """Return where the native managers had the containers: of `04`, and the debugger of `07`."""
    lines = day("static")
    known, pods = names(lines), pod_names(lines)
    placed: dict[tuple[str, str], str] = {}
    for moment in (line for line in lines if line.get("name") in ("04", "07")):
        for path, values in moment["cgroups"].items():
            uid, name = known.get(container_id(CgroupPath(path)) or "", (PodUID(""), None))
            if name is not None:
                placed[pods[uid], name] = values["cpuset.cpus"]
    return placed


def pod_names(lines: Iterable[Line]) -> dict[PodUID, str]:
    pods = (line["event"]["object"]["metadata"] for line in lines if line["ev"] == "watch")
    return {PodUID(pod["uid"]): pod["name"] for pod in pods if "uid" in pod}


def as_in_static(lines: list[Line]) -> list[Line]:
    """Return the day with the one number changed."""
    return [line if line["ev"] != "watch" else _with_small_side(line) for line in lines]


def _with_small_side(line: Line) -> Line:
    edited: Line = json.loads(json.dumps(line))
    pod = edited["event"]["object"]
    containers = [
        *(pod["spec"].get("containers") or ()),
        *pod["status"].get("containerStatuses", ()),
    ]
    for one in containers if pod["metadata"].get("name") == "guaranteed" else ():
        resources = [one.get("allocatedResources"), *one.get("resources", {}).values()]
        for amounts in filter(None, resources if one["name"] == "side" else ()):
            amounts["cpu"] = "500m"
    return edited


def placed(moment: Moment) -> Placed:
    return {(one.pod, one.name): one.cpus for one in moment.containers.values()}


@pytest.mark.parametrize(
    ("run", "named", "containers"),
    [("none", True, 190), ("none", False, 190), ("cgroupfs", True, 16)],
    ids=["bundles", "statuses", "cgroupfs"],
)
def test_at_each_moment_the_same_pods_have_the_cpus_of_the_native_managers(
    tmp_path: Path, native: Placed, run: str, containers: int, *, named: bool
) -> None:
    replay = Replay(tmp_path, run, rules(tmp_path), edit=as_in_static, named=named)
    own = {key: cpus for key, cpus in native.items() if cpus != native[SHARED]}
    compared = 0
    for moment in replay.moments():
        if moment.name in ALL_RUN[run]:
            here = placed(moment)
            default = native[SHARED] if ("guaranteed", "app") in here else "0-3"
            assert here == {key: own.get(key, default) for key in here}
            compared += len(here)
    assert compared == containers


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Replay, list[Moment]]:
    """Return the day as it was, when it is over, and its moments."""
    folder = tmp_path_factory.mktemp("day")
    replay = Replay(folder, "none", rules(folder))
    return replay, list(replay.moments())


def test_on_the_day_as_it_was_the_pod_with_a_budget_is_where_the_native_managers_had_it(
    lived: tuple[Replay, list[Moment]], native: Placed
) -> None:
    own = {key: cpus for key, cpus in native.items() if key[0] == DB and cpus != native[SHARED]}
    compared = 0
    for moment in lived[1]:
        here = {key: cpus for key, cpus in placed(moment).items() if key in own}
        assert here == {key: own[key] for key in here}
        compared += len(here)
    assert compared == 54


def test_above_the_pods_only_the_parents_of_shared_ones_are_narrowed(
    lived: tuple[Replay, list[Moment]],
) -> None:
    """What the kubelet wrote stands; others are born outside of all exclusive CPUs."""
    replay, moments = lived
    kubepods = replay.layout.kubepods()
    narrowed = 0
    for moment in moments:
        for path, says in moment.parents.items():
            if says != GONE:
                default = guest().cpus if path == kubepods else moment.snapshot.state.default
                assert says == str(default)
                narrowed += path != kubepods
    assert narrowed == 40
    assert kubepods not in {path for path, _, _ in replay.kernel.writes}


def test_a_value_that_went_with_its_file_is_written_again(tmp_path: Path) -> None:
    """A BestEffort pod's slice was made with cpuset files, lost them, and got them back."""
    replay = Replay(tmp_path, "none", rules(tmp_path))
    replay.until("03")
    (pod,) = replay.kernel.children(replay.layout.qos_parent(QosClass.BEST_EFFORT))
    written = [value for path, file, value in replay.kernel.writes if (path, file) == (pod, CPUS)]
    assert written[-1] == str(replay.snapshot.state.default)
    assert replay.kernel.read(pod, CPUS) == GONE

    replay.until("04")

    assert replay.text(pod, CPUS) == str(replay.snapshot.state.default)


def test_sandboxes_run_on_the_pod_shared_pool(lived: tuple[Replay, list[Moment]]) -> None:
    replay, _ = lived
    (db,) = (uid for uid, pod in replay.objects.items() if is_named(pod, DB))
    sandboxes = {path for path, _ in replay.node.processes if replay.who(path) == (db, None)}
    assert {str(replay.effective(path)) for path in sandboxes} == {"6-7"}


def test_a_day_without_trouble_has_no_problems(lived: tuple[Replay, list[Moment]]) -> None:
    """Young slices, and QoS slices without pods, have no cpuset files; nothing runs there."""
    assert lived[0].problems == set()


def test_a_resized_container_stays_on_cpus_that_it_has_and_its_sibling_where_it_is(
    lived: tuple[Replay, list[Moment]],
) -> None:
    (before,), (after,) = (guaranteed(m).values() for m in lived[1] if m.name in ("18", "19"))
    assert after["app"] <= before["app"]
    assert len(after["app"]) == 1
    assert after["side"] == before["side"]


def test_a_resize_that_does_not_fit_is_told_and_changes_nothing(
    lived: tuple[Replay, list[Moment]],
) -> None:
    """The kubelet of policy none makes 5 CPUs of 4; a NUMA node has 4."""
    moments = {moment.name: moment for moment in lived[1]}
    (complaint,) = moments["20"].snapshot.complaints.values()
    assert complaint.reason == "TopologyAffinityError"
    assert moments["21"].snapshot.complaints == moments["20"].snapshot.complaints
    assert moments["21"].snapshot.rejections == {}


def test_a_pod_that_the_kubelet_refused_has_no_cgroup_and_holds_nothing(
    lived: tuple[Replay, list[Moment]],
) -> None:
    replay, moments = lived
    (too_big,) = (uid for uid, pod in replay.objects.items() if is_named(pod, "too-big"))
    assert all(too_big not in moment.snapshot.state.pods for moment in moments)
    assert too_big not in {uid for uid, _ in replay.names.values()}


def test_a_pod_made_again_under_the_same_name_is_another_pod(
    lived: tuple[Replay, list[Moment]],
) -> None:
    held = {moment.name: guaranteed(moment) for moment in lived[1]}
    (first,), (second,) = held["16"], held["18"]
    assert held["17"] == {}
    assert first != second
    assert held["16"][first] == held["18"][second]


def is_named(pod: Line, name: str) -> bool:
    is_so: bool = pod["metadata"]["name"] == name
    return is_so


def guaranteed(moment: Moment) -> dict[PodUID, Mapping[str, CPUSet]]:
    """Return what the pods with the name `guaranteed` hold."""
    uids = {pod.uid for pod in moment.snapshot.pods if pod.name == "guaranteed"}
    return {u: entry.cpus for u, entry in moment.snapshot.state.pods.items() if u in uids}


def test_a_deleted_pod_holds_its_cpus_until_its_cgroup_is_empty(tmp_path: Path) -> None:
    replay = Replay(tmp_path, "none", rules(tmp_path))
    replay.until("16")
    (uid,) = (pod.uid for pod in replay.snapshot.pods if pod.name == "guaranteed")
    for line in replay.play():
        runs = any(replay.who(path)[0] == uid for path, _ in replay.node.processes)
        assert not runs or uid in replay.snapshot.state.pods
        if line["ev"] == "watch" and line["event"]["type"] == "DELETED":
            break
    assert uid not in replay.snapshot.state.pods


@pytest.mark.parametrize(
    ("run", "containers"),
    [("none", 28), ("static", 26), ("static-restart", 12), ("cgroupfs", 9)],
)
def test_every_container_is_confined_before_its_program_runs(
    tmp_path: Path, run: str, containers: int
) -> None:
    replay = Replay(tmp_path, run, rules(tmp_path))
    confined = set()
    for line in replay.play():
        path = CgroupPath(line.get("path", ""))
        runs = any(is_program(comm) for _, comm in line.get("procs", ()))
        if runs and path in replay.containers():
            assert replay.effective(path) == replay.decided(path)
            confined.add(path)
    assert len(confined) == containers


def is_program(comm: str | None) -> bool:
    """Tell whether a process is the container's own, and no longer the runtime's."""
    return comm is not None and not comm.startswith("runc")
