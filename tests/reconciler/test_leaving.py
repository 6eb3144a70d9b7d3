"""Everything that was overwritten can be given back, at any time and whatever happened since."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.core.overwritten import Overwritten
from agent.core.pods import Container, Pod
from agent.giving_back import give_back, release
from agent.ports import CgroupsChanged, PodChanged, PodGone, Tick
from tests.reconciler.rig import (
    BURSTABLE,
    KUBEPODS,
    World,
    annotated_pod,
    equal,
    exclusive_pod,
    shared_pod,
    two_sockets,
)
from tests.reconciler.test_runtime_cgroups import MIXED, KubeletWorld

A, POOL = exclusive_pod("a", 2), annotated_pod("pool", 3)
Files = dict[tuple[str, str], str]


@pytest.fixture
def world(tmp_path: Path) -> KubeletWorld:
    world = KubeletWorld(two_sockets(), tmp_path)
    world.kernel.may_unset = True
    return world


def files(world: World) -> Files:
    """All that the cgroups say of what the agent writes."""
    names = ("cpuset.cpus", "cpuset.mems", "cpu.max")

    def below(path: CgroupPath) -> Files:
        found: Files = {(str(path), name): world.text(path, name) for name in names}
        for child in world.kernel.children(path):
            found |= below(child)
        return found

    return below(KUBEPODS)


def populated(world: KubeletWorld) -> list[CgroupPath]:
    pod, pool = world.pod(KUBEPODS / "poda"), world.pod(BURSTABLE / "podpool")
    paths = [world.container(pod, name) for name in ("db", "side", None)]
    paths += [world.container(pool, name) for name in ("c0", "side")]
    world.kernel.write(paths[0], "cpu.max", "200000 100000")
    world.kernel.write(KUBEPODS, "cpuset.cpus", "0-15")
    return paths


def test_where_nothing_runs_release_puts_back_every_value(world: KubeletWorld) -> None:
    paths = populated(world)
    for path in paths:
        world.kernel.kill(world.pids[path])
    before = files(world)
    world.listed(MIXED, POOL, shared_pod("s"))
    assert files(world) != before

    given = release(world.kernel, world.journal(), CgroupPath("numalet.slice"))

    assert files(world) == before
    assert (given.notes, given.problems) == ((), ())
    assert world.journal().entries == ()


def test_where_processes_run_an_unset_list_becomes_the_one_above_and_that_is_said(
    world: KubeletWorld,
) -> None:
    paths = populated(world)
    before = files(world)
    world.listed(MIXED, POOL)

    given = release(world.kernel, world.journal(), CgroupPath("numalet.slice"))

    assert given.problems == ()
    assert all(world.cpus(path) == "0-15" for path in paths)
    assert f"{paths[0]}/cpuset.cpus says 0-15, as the cgroup above" in "\n".join(given.notes)
    quotas = {key: value for key, value in files(world).items() if key[1] == "cpu.max"}
    assert quotas == {key: value for key, value in before.items() if key[1] == "cpu.max"}


def test_a_cgroup_that_was_made_again_is_left_alone(world: KubeletWorld) -> None:
    db = populated(world)[0]
    world.listed(MIXED)
    world.kernel.kill(world.pids[db])
    world.kernel.vanish(db)
    world.kernel.make(db)
    world.kernel.write(db, "cpuset.cpus", "9")
    release(world.kernel, world.journal(), CgroupPath("numalet.slice"))
    assert world.text(db, "cpuset.cpus") == "9"


def test_the_kubelets_quota_comes_back_when_the_exclusive_slice_ends(world: KubeletWorld) -> None:
    db = populated(world)[0]
    world.listed(MIXED)
    assert world.text(db, "cpu.max") == "max 100000"
    world.kernel.foreign_write(db, "cpu.max", "300000 100000")  # a resize
    world.handle(Tick())
    assert world.text(db, "cpu.max") == "max 100000"

    fractional = (
        Container(name="db", resources=equal(1500)),
        Container(name="side", resources=equal(500)),
    )
    world.handle(PodChanged(replace(MIXED, app_containers=fractional)))

    assert world.text(db, "cpu.max") == "300000 100000"
    world.kernel.foreign_write(db, "cpu.max", "150000 100000")
    world.handle(Tick())
    assert world.text(db, "cpu.max") == "150000 100000"


def resized(milli: int) -> Pod:
    db, side = (Container(name=n, resources=equal(m)) for n, m in (("db", milli), ("side", 500)))
    return replace(MIXED, app_containers=(db, side))


def test_a_quota_that_the_kubelet_wrote_in_the_same_moment_stays(world: KubeletWorld) -> None:
    db = populated(world)[0]
    world.listed(MIXED)
    world.kernel.foreign_write(db, "cpu.max", "150000 100000")
    world.agent.handle(CgroupsChanged(db.parent), PodChanged(resized(1500)))
    assert world.text(db, "cpu.max") == "150000 100000"


def test_a_quota_that_came_while_no_agent_ran_stays(world: KubeletWorld) -> None:
    db = populated(world)[0]
    world.listed(MIXED)
    world.kernel.foreign_write(db, "cpu.max", "350000 100000")
    world.start()
    world.listed(resized(3500))
    assert world.text(db, "cpu.max") == "350000 100000"
    world.kernel.foreign_write(db, "cpu.max", "300000 100000")
    assert release(world.kernel, world.journal(), CgroupPath("numalet.slice")).problems == ()
    assert world.text(db, "cpu.max") == "300000 100000"


def test_without_a_cpu_manager_all_get_back_what_they_had_before(world: KubeletWorld) -> None:
    paths = populated(world)
    world.listed(MIXED, POOL)
    policy = replace(world.rules.policy, cpu_policy="none")
    world.rules = replace(world.rules, policy=policy)

    world.start()
    world.listed(MIXED, POOL)

    assert {world.cpus(path) for path in paths} == {"0-15"}
    assert world.text(KUBEPODS, "cpuset.cpus") == "0-15"


def test_cgroups_that_have_gone_are_forgotten(world: KubeletWorld) -> None:
    db = populated(world)[0]
    world.listed(MIXED)
    world.kernel.kill(world.pids[db])
    world.kernel.vanish(db)
    world.handle(CgroupsChanged(db.parent))
    assert db not in {entry.path for entry in world.journal().entries}


def test_on_a_single_host_the_agents_own_empty_cgroups_are_removed(tmp_path: Path) -> None:
    world = World(two_sockets(), tmp_path)
    world.kernel.may_unset = True
    world.listed(A, POOL)
    world.kernel.add_task(KUBEPODS / "poda" / "c0")

    given = release(world.kernel, world.journal(), KUBEPODS)

    assert world.exists(KUBEPODS / "poda" / "c0")
    assert not world.exists(BURSTABLE)
    assert given.notes[-1] == "/kubepods/poda/c0 stays: something runs there"
    world.handle(PodGone(POOL.uid))


@pytest.mark.parametrize("runs", [True, False])
def test_what_a_running_program_made_in_its_container_is_left_alone(
    tmp_path: Path, *, runs: bool
) -> None:
    world = World(two_sockets(), tmp_path)
    world.kernel.may_unset = True
    world.listed(A)
    container = KUBEPODS / "poda" / "c0"
    for name in ("busy", "idle"):
        world.kernel.mkdir(container / name)
    if runs:
        world.kernel.add_task(container / "busy")

    given = release(world.kernel, world.journal(), KUBEPODS)

    assert world.exists(container / "idle") is world.exists(container) is runs
    stays = [note for note in given.notes if "stays" in note]
    assert stays == ([f"{container} stays: something runs there"] if runs else [])


def test_below_the_agents_own_slice_a_quota_comes_back_that_it_replaced_by_another(
    world: KubeletWorld,
) -> None:
    """There all quotas are the agent's; that from before it is an administrator's."""
    path = CgroupPath("numalet.slice/numalet-kubepods.slice/numalet-kubepods-poda.slice")
    world.kernel.make(path)
    identity = world.kernel.identity(path)
    assert isinstance(identity, int)
    theirs = Overwritten(path=path, identity=identity, file="cpu.max", value="50000 100000")
    world.kernel.write(path, "cpu.max", "200000 100000")

    assert give_back(world.kernel, [theirs]).done == (theirs,)

    assert world.text(path, "cpu.max") == "50000 100000"
