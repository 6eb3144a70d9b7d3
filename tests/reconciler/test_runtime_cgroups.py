"""A kubelet and a runtime make the cgroups; the agent finds them, and makes or removes none."""

import errno
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.pods import Container, Kind, Pod, PodUID, QosClass
from agent.errors import CgroupError
from agent.ports import CgroupsChanged, PodChanged, PodGone, Tick
from tests.reconciler.rig import (
    BEST_EFFORT,
    BURSTABLE,
    KUBEPODS,
    WatchedKernel,
    World,
    annotated_pod,
    equal,
    exclusive_pod,
    shared_pod,
    two_sockets,
)

A, B = exclusive_pod("a", 2), exclusive_pod("b", 3)
MIXED = replace(
    A,
    app_containers=(
        Container(name="db", resources=equal(2000)),
        Container(name="side", resources=equal(500)),
    ),
)
POOL = annotated_pod("pool", 3)


@dataclass(frozen=True)
class Name:
    container: str | None
    pod_uid: PodUID
    runtime: str = "runc"

    @property
    def has_own_kernel(self) -> bool:
        return self.runtime != "runc"


@dataclass
class Names:
    """The runtime's bundles."""

    known: dict[str, Name] = field(default_factory=dict)

    def name_of(self, container_id: str) -> Name | None:
        return self.known.get(container_id)

    def forget_others(self, container_ids: Collection[str]) -> None:
        """Remember all: they are on disk."""


@dataclass
class KubeletWorld(World):
    """Makes cgroups as a kubelet with the cgroupfs driver and a runtime do."""

    bundles: Names = field(default_factory=Names)
    made: int = 0
    pids: dict[CgroupPath, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.names = self.bundles
        super().__post_init__()

    def boot(self) -> None:
        super().boot()
        for path in (KUBEPODS, BEST_EFFORT, BURSTABLE):
            self.kernel.make(path)

    def pod(self, path: CgroupPath) -> CgroupPath:
        self.kernel.make(path)
        return path

    def container(self, pod: CgroupPath, name: str | None, *, named: bool = True) -> CgroupPath:
        """Start a container (None: the sandbox) with a process, and name it in its bundle."""
        self.made += 1
        container_id = sha256(str(self.made).encode()).hexdigest()
        if named:
            uid = PodUID(pod.name.removeprefix("pod"))
            self.bundles.known[container_id] = Name(name, uid)
        self.kernel.make(pod / container_id)
        self.pids[pod / container_id] = self.kernel.add_task(pod / container_id)
        return pod / container_id

    def cpus(self, path: CgroupPath) -> str:
        return str(self.effective(path))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[KubeletWorld]:
    world = KubeletWorld(two_sockets(), tmp_path)
    yield world
    assert world.snapshots[-1].problems == ()


def test_no_cgroup_is_made_for_a_pod_whose_own_is_not_there_yet(world: KubeletWorld) -> None:
    assert world.listed(A).ready
    assert not world.exists(KUBEPODS / "poda")


def test_a_guaranteed_pod_is_narrowed_when_its_cgroup_appears(world: KubeletWorld) -> None:
    world.listed(A)
    path = world.pod(KUBEPODS / "poda")
    world.handle(CgroupsChanged(KUBEPODS))
    assert world.cpus(path) == "1-2"
    assert world.cpus(world.container(path, "c0")) == "1-2"  # before the agent has seen it


def test_each_container_gets_its_own_as_soon_as_its_bundle_names_it(world: KubeletWorld) -> None:
    world.listed(MIXED, POOL)
    pod, pool = world.pod(KUBEPODS / "poda"), world.pod(BURSTABLE / "podpool")
    db, side = world.container(pod, "db"), world.container(pod, "side")
    c0, proxy = world.container(pool, "c0"), world.container(pool, "side")
    sandbox = world.container(pool, None)

    world.handle(CgroupsChanged(pod))

    assert [world.cpus(path) for path in (db, side)] == ["1-2", "0,6-15"]
    assert [world.cpus(path) for path in (c0, proxy, sandbox)] == ["3-4", "5", "5"]
    assert world.text(db, "cpu.max") == "max 100000"


def test_a_container_that_nobody_names_gets_the_pod_shared_pool_until_its_status_does(
    world: KubeletWorld,
) -> None:
    world.listed(POOL)
    pool = world.pod(BURSTABLE / "podpool")
    c0 = world.container(pool, "c0", named=False)
    world.handle(CgroupsChanged(pool))
    assert world.cpus(c0) == "3"

    world.handle(PodChanged(replace(POOL, container_ids={c0.name: "c0"})))

    assert world.cpus(c0) == "1-2"


def test_a_bundle_that_tells_of_another_pod_is_not_believed(world: KubeletWorld) -> None:
    world.listed(POOL)
    pool = world.pod(BURSTABLE / "podpool")
    c0 = world.container(pool, "c0")
    world.bundles.known[c0.name] = Name("c0", PodUID("other"))
    world.handle(CgroupsChanged(pool))
    assert world.cpus(c0) == "3"


def test_a_restarted_container_keeps_its_cpus_under_its_new_id(world: KubeletWorld) -> None:
    world.listed(MIXED)
    pod = world.pod(KUBEPODS / "poda")
    first = world.container(pod, "db")
    world.handle(CgroupsChanged(pod))
    world.kernel.kill(world.pids[first])
    world.kernel.vanish(first)

    again = world.container(pod, "db")
    world.handle(CgroupsChanged(pod))

    assert world.cpus(again) == "1-2"


def test_the_inner_cgroup_of_crun_says_what_its_scope_says(world: KubeletWorld) -> None:
    world.listed(MIXED)
    pod = world.pod(KUBEPODS / "poda")
    db = world.container(pod, "db")
    world.kernel.kill(world.pids[db])
    world.kernel.make(db / "container")
    world.kernel.add_task(db / "container")
    world.handle(CgroupsChanged(pod))
    assert world.text(db / "container", "cpuset.cpus") == "1-2"


def test_an_ephemeral_container_runs_on_the_default_cpu_set(world: KubeletWorld) -> None:
    pod = replace(A, ephemeral_containers=(Container(name="debug", kind=Kind.EPHEMERAL),))
    world.listed(pod)
    path = world.pod(KUBEPODS / "poda")
    debug = world.container(path, "debug")
    world.handle(CgroupsChanged(path))
    assert world.cpus(debug) == "0,3-15"


def test_a_pod_that_no_source_has_named_yet_runs_on_the_default_cpu_set(
    world: KubeletWorld,
) -> None:
    world.listed(A)
    path = world.pod(KUBEPODS / "podb")
    world.container(path, "c0")
    world.handle(CgroupsChanged(KUBEPODS))
    assert world.cpus(path) == "0,3-15"

    world.handle(PodChanged(B))

    assert world.cpus(path) == "3-5"


def test_a_best_effort_pod_is_born_outside_every_exclusive_cpu(world: KubeletWorld) -> None:
    world.listed(A, POOL)
    path = world.pod(BEST_EFFORT / "podnew")
    assert world.cpus(world.container(path, "c0")) == "0,6-15"


def test_quotas_are_the_kubelets_but_for_what_an_exclusive_slice_needs(
    world: KubeletWorld,
) -> None:
    pod = world.pod(KUBEPODS / "poda")
    db, side = world.container(pod, "db"), world.container(pod, "side")
    for path, quota in ((pod, "250000"), (db, "200000"), (side, "50000")):
        world.kernel.write(path, "cpu.max", f"{quota} 100000")
    shared = world.pod(BEST_EFFORT / "pods")
    world.kernel.write(shared, "cpu.max", "77000 100000")

    world.listed(MIXED, shared_pod("s"))

    assert world.text(db, "cpu.max") == "max 100000"
    assert world.text(side, "cpu.max") == "50000 100000"
    assert world.text(shared, "cpu.max") == "77000 100000"


def test_a_pod_that_ended_gives_its_cpus_back_and_its_cgroup_is_left_to_the_kubelet(
    world: KubeletWorld,
) -> None:
    world.listed(A)
    path = world.pod(KUBEPODS / "poda")
    c0 = world.container(path, "c0")
    world.handle(CgroupsChanged(path), PodGone(A.uid))
    assert world.snapshots[-1].state.pods
    world.kernel.kill(world.pids[c0])

    world.handle(CgroupsChanged(path))

    assert not world.snapshots[-1].state.pods
    assert world.exists(c0)


def test_after_a_restart_nothing_is_written_for_what_runs(world: KubeletWorld) -> None:
    world.listed(MIXED, POOL)
    pod, pool = world.pod(KUBEPODS / "poda"), world.pod(BURSTABLE / "podpool")
    for path, names in ((pod, ("db", "side", None)), (pool, ("c0", "side", None))):
        for name in names:
            world.container(path, name)
    world.handle(Tick())
    world.kernel.writes.clear()

    world.start()
    world.listed(POOL, MIXED)

    assert world.kernel.writes == []


def test_without_bundles_a_restart_changes_nothing_though_the_api_server_is_away(
    world: KubeletWorld,
) -> None:
    pod, pool = world.pod(KUBEPODS / "poda"), world.pod(BURSTABLE / "podpool")
    names = {world.container(pod, name, named=False): name for name in ("db", "side")}
    in_pool = {world.container(pool, name, named=False): name for name in ("c0", "side")}
    world.kernel.foreign_write(next(iter(names)), "cpu.max", "200000 100000")
    world.listed(
        replace(MIXED, container_ids={path.name: name for path, name in names.items()}),
        replace(POOL, container_ids={path.name: name for path, name in in_pool.items()}),
    )
    before = {path: (world.cpus(path), world.text(path, "cpu.max")) for path in names | in_pool}
    world.kernel.writes.clear()

    world.start()
    world.handle(Tick())

    assert {file for _, file, _ in world.kernel.writes} <= {"cpuset.mems"}  # within the pod's
    assert before == {path: (world.cpus(path), world.text(path, "cpu.max")) for path in before}


def test_without_bundles_the_memory_of_a_container_without_cpus_of_its_own_stays_where_it_is(
    world: KubeletWorld,
) -> None:
    """Nobody knows its name before the API server says it; nor is the sandbox taken for a container."""
    amounts = {"db": 6000, "db2": 3000, "side": 1500}
    containers = tuple(Container(name=n, resources=equal(milli, 1)) for n, milli in amounts.items())
    mixed = replace(MIXED, app_containers=containers)
    pod, alone = world.pod(KUBEPODS / "poda"), world.pod(KUBEPODS / "podone")
    names = {world.container(pod, name, named=False): name for name in amounts}
    single = {world.container(alone, name, named=False): name for name in ("c0", None)}
    one = exclusive_pod("one", 1)
    world.kernel.foreign_write(next(iter(single)), "cpu.max", "100000 100000")
    pods = (
        replace(mixed, container_ids={path.name: name for path, name in names.items()}),
        replace(one, container_ids={path.name: name for path, name in single.items() if name}),
    )
    world.listed(*pods)
    world.handle(Tick())
    world.kernel.writes.clear()

    world.start()
    world.handle(Tick())
    world.listed(*pods)

    assert world.kernel.writes == []


def test_while_a_resize_does_not_fit_all_else_of_the_pod_is_followed(world: KubeletWorld) -> None:
    world.listed(POOL)
    pool = world.pod(BURSTABLE / "podpool")
    bigger = replace(
        annotated_pod("pool", 30),
        ephemeral_containers=(Container(name="debug", kind=Kind.EPHEMERAL),),
    )
    world.handle(PodChanged(bigger))
    c0, debug = world.container(pool, "c0", named=False), world.container(pool, "debug")

    snapshot = world.handle(PodChanged(replace(bigger, container_ids={c0.name: "c0"})))

    assert list(snapshot.complaints) == ["pool"]
    assert (world.cpus(c0), world.cpus(debug)) == ("1-2", "0,4-15")


def test_a_resize_keeps_the_cpus_that_are_held(world: KubeletWorld) -> None:
    world.listed(A, POOL)
    snapshot = world.handle(PodChanged(exclusive_pod("a", 4)))
    assert str(snapshot.state.pods[A.uid].held) == "1-2,6-7"
    snapshot = world.handle(PodChanged(A))
    assert str(snapshot.state.pods[A.uid].held) == "1-2"


def test_the_memory_of_an_ended_init_container_is_free_again(world: KubeletWorld) -> None:
    init = Container(name="i", kind=Kind.INIT, resources=equal(1000, 4))
    pod = replace(A, init_containers=(init,))
    before = world.listed(pod).state.memory
    after = world.handle(PodChanged(replace(pod, ended_init=frozenset({"i"})))).state.memory
    assert after[0].tables["memory"].free > before[0].tables["memory"].free


class UnlistableKernel(WatchedKernel):
    """Refuses to list one cgroup."""

    broken: CgroupPath | None = None

    def children(self, path: CgroupPath) -> tuple[CgroupPath, ...]:
        if path == self.broken:
            raise CgroupError(str(path), errno.EIO, "list")
        return super().children(path)


def test_where_cgroups_cannot_be_listed_nothing_is_written_and_all_goes_on_later(
    tmp_path: Path,
) -> None:
    world = KubeletWorld(two_sockets(), tmp_path, kernel_class=UnlistableKernel)
    kernel = world.kernel
    assert isinstance(kernel, UnlistableKernel)
    world.listed(POOL)
    pool = world.pod(BURSTABLE / "podpool")
    world.container(pool, "c0")
    world.handle(Tick())
    kernel.broken = pool
    kernel.writes.clear()

    world.agent.handle(PodChanged(A), Tick())

    assert any("EIO" in problem for problem in world.snapshots[-1].problems)
    assert kernel.writes == []
    kernel.broken = None
    assert world.handle(Tick()).problems == ()
    assert world.cpus(BURSTABLE) == "0-3,6-15"


def test_a_mirror_that_is_made_again_moves_no_static_pod(world: KubeletWorld) -> None:
    hash_ = "0123456789abcdef0123456789abcdef"

    def mirror(api_uid: str) -> Pod:
        return replace(A, uid=PodUID(hash_), api_uid=PodUID(api_uid))

    world.listed(mirror("api-1"))
    path = world.pod(KUBEPODS / f"pod{hash_}")
    c0 = world.container(path, "c0")
    world.handle(CgroupsChanged(path))
    world.kernel.writes.clear()

    world.handle(PodGone(PodUID(hash_)), PodChanged(mirror("api-2")))

    assert world.cpus(c0) == "1-2"
    assert world.kernel.writes == []


def test_a_pod_is_looked_for_where_the_class_puts_it_that_the_api_server_says(
    world: KubeletWorld,
) -> None:
    """The kubelet goes by ``status.qosClass``, whatever would be computed here and now."""
    burstable = replace(A, qos=QosClass.BURSTABLE)
    annotated = replace(POOL, qos=QosClass.BURSTABLE)
    world.listed(burstable, annotated)
    pod, pool = world.pod(BURSTABLE / "poda"), world.pod(BURSTABLE / "podpool")
    world.handle(CgroupsChanged(BURSTABLE))
    assert (world.cpus(pod), world.cpus(pool)) == ("1-2", "3-5")
    assert world.handle(PodChanged(replace(annotated, qos=None))).complaints == {}
