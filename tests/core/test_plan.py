"""Plans, executed write by write on a small model of what cgroups may use."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.core.cgroups import CgroupPath, CgroupValues, CpuMax, MemoryMax
from agent.core.cpuset import CPUSet, IdSetError, NodeSet
from agent.core.desired import PodCgroups, desired_values
from agent.core.plan import (
    CPU_MAX_FILE,
    CPU_WEIGHT_FILE,
    CPUS_FILE,
    MEMORY_MAX_FILE,
    MEMS_FILE,
    Phase,
    Write,
    file_values,
    plan_writes,
)
from agent.core.startup import Rules
from tests.props.test_promises import Moment, moments
from tests.strategies import Step, histories, rules

KUBEPODS = CgroupPath("kubepods")
BURSTABLE = KUBEPODS / "burstable"
CPUS = 12
ALL = CPUSet(range(CPUS))

Values = Mapping[CgroupPath, CgroupValues]


@dataclass
class Hierarchy:
    """Cgroups with the kernel's rule: a set that its parent has nothing of counts as the parent's."""

    top: CPUSet
    values: dict[CgroupPath, CgroupValues]

    def effective(self, path: CgroupPath) -> CPUSet:
        if not path.relative:
            return self.top
        above = self.effective(path.parent)
        own = self.values[path].cpus if path in self.values else None
        return above if own is None else own & above or above

    def observed(self) -> dict[CgroupPath, CgroupValues]:
        return {
            path: replace(values, effective_cpus=self.effective(path))
            for path, values in self.values.items()
        }

    def apply(self, write: Write) -> None:
        values = self.values[write.path]
        if write.file == CPUS_FILE:
            self.values[write.path] = replace(values, cpus=CPUSet.parse(write.value))
        elif write.file == MEMS_FILE:
            self.values[write.path] = replace(values, mems=NodeSet.parse(write.value))
        elif write.file == CPU_WEIGHT_FILE:
            self.values[write.path] = replace(values, cpu_weight=int(write.value))
        elif write.file == MEMORY_MAX_FILE:
            limit = MemoryMax(None if write.value == "max" else int(write.value))
            self.values[write.path] = replace(values, memory_max=limit)
        else:
            assert write.file == CPU_MAX_FILE
            quota, period = write.value.split()
            cpu_max = CpuMax(None if quota == "max" else int(quota), int(period))
            self.values[write.path] = replace(values, cpu_max=cpu_max)

    def usage(self, pods: Mapping[str, Sequence[CgroupPath]]) -> dict[str, CPUSet]:
        """Return what each pod's leaves may use."""
        return {
            pod: CPUSet(cpu for leaf in leaves for cpu in self.effective(leaf))
            for pod, leaves in pods.items()
        }


def shared(usage: Mapping[str, CPUSet]) -> dict[tuple[str, str], CPUSet]:
    return {(a, b): usage[a] & usage[b] for a, b in combinations(sorted(usage), 2)}


def check_plan(
    top: CPUSet, observed: Values, desired: Values, pods: Mapping[str, Sequence[CgroupPath]]
) -> None:
    """Execute a plan; nobody may ever meet another pod where they met neither before nor after."""
    hierarchy = Hierarchy(top, dict(observed))
    before = shared(hierarchy.usage(pods))
    after = shared(Hierarchy(top, {**observed, **desired}).usage(pods))
    writes = plan_writes(desired, hierarchy.observed())
    for write in writes:
        assert write.value
        hierarchy.apply(write)
        for pair, cpus in shared(hierarchy.usage(pods)).items():
            assert cpus <= before[pair] | after[pair], (write, pair)
    check_order(writes)
    for path, want in desired.items():
        have = file_values(hierarchy.values[path])
        for file, value in file_values(want).items():
            assert value in (None, have[file])
    assert plan_writes(desired, hierarchy.observed()) == []
    for write in writes:
        assert_differed(write, observed[write.path], desired[write.path])


def check_order(writes: Sequence[Write]) -> None:
    assert writes == sorted(writes)
    phases = [write.phase for write in writes]
    assert phases == sorted(phases)
    assert [w.phase is Phase.MEMS for w in writes] == [w.file == MEMS_FILE for w in writes]
    shrinks = [w.path.depth for w in writes if w.phase is Phase.SHRINK]
    grows = [w.path.depth for w in writes if w.phase is Phase.GROW]
    assert shrinks == sorted(shrinks, reverse=True)
    assert grows == sorted(grows)


def assert_differed(write: Write, had: CgroupValues, wanted: CgroupValues) -> None:
    assert file_values(had)[write.file] != file_values(wanted)[write.file]


@st.composite
def pod_cgroups(draw: st.DrawFn, path: CgroupPath, pool: CPUSet) -> dict[CgroupPath, CgroupValues]:
    """Divide a pool among two leaves, and give them memory nodes and quotas."""
    mine = CPUSet(draw(st.sets(st.sampled_from(sorted(pool)), min_size=1)))
    mems = st.sets(st.integers(0, 2), min_size=1).map(NodeSet)
    cpu_max = st.sampled_from((CpuMax(), CpuMax(50_000)))
    weight = st.sampled_from((None, 1, 100))
    memory_max = st.sampled_from((None, MemoryMax(), MemoryMax(1 << 30)))
    return {
        path: CgroupValues(
            cpus=pool, mems=draw(mems), cpu_max=draw(cpu_max), memory_max=draw(memory_max)
        ),
        path / "a": CgroupValues(
            cpus=mine, mems=draw(mems), cpu_max=draw(cpu_max), cpu_weight=draw(weight)
        ),
        path / "b": CgroupValues(cpus=(pool - mine) or pool),
    }


PATHS = {"p0": KUBEPODS / "p0", "p1": BURSTABLE / "p1", "p2": BURSTABLE / "p2"}
LEAVES = {name: (path / "a", path / "b") for name, path in PATHS.items()} | {
    "light": (BURSTABLE / "light" / "a",)
}


@st.composite
def partitions(draw: st.DrawFn) -> dict[CgroupPath, CgroupValues]:
    """Divide the CPUs among the default set and three pods, of whom everybody keeps one CPU.

    Where nobody keeps any, see `test_pods_that_move_in_a_row_never_meet`.
    """
    owners: dict[str, set[int]] = {"light": {0}, "p0": {1}, "p1": {2}, "p2": {3}}
    for cpu in range(4, CPUS):
        owners[draw(st.sampled_from(sorted(owners)))].add(cpu)
    values: dict[CgroupPath, CgroupValues] = {}
    for name, path in PATHS.items():
        values |= draw(pod_cgroups(path, CPUSet(owners[name])))
    default = CPUSet(owners["light"])
    below = default | CPUSet(owners["p1"]) | CPUSet(owners["p2"])
    values |= {path: CgroupValues(cpus=default) for path in (BURSTABLE / "light", *LEAVES["light"])}
    return values | {BURSTABLE: CgroupValues(cpus=below)}


@given(partitions(), partitions())
@settings(max_examples=200, deadline=None)
def test_from_one_division_to_another_no_cpu_ever_has_two_owners(old: Values, new: Values) -> None:
    check_plan(ALL, old, new, LEAVES)


places = st.lists(st.integers(1, 7), min_size=3, max_size=3, unique=True)


@given(places, places)
@settings(max_examples=150, deadline=None)
def test_pods_that_move_in_a_row_never_meet(old: list[int], new: list[int]) -> None:
    assume(not has_ring(dict(zip(old, new, strict=True))))

    def at(cpus: list[int]) -> Values:
        default = CPUSet([0])
        values = {
            path: CgroupValues(cpus=default) for path in (BURSTABLE / "light", *LEAVES["light"])
        }
        for (name, path), cpu in zip(PATHS.items(), cpus, strict=True):
            values |= dict.fromkeys((path, *LEAVES[name]), CgroupValues(cpus=CPUSet([cpu])))
        return values | {BURSTABLE: CgroupValues(cpus=default | CPUSet(cpus[1:]))}

    check_plan(ALL, at(old), at(new), LEAVES)


def has_ring(moves: dict[int, int]) -> bool:
    """Tell whether some of those that move wait for each other."""
    for start, goal in moves.items():
        place = goal
        while place != start and moves.get(place, place) != place:
            place = moves[place]
        if place == start != goal:
            return True
    return False


@given(partitions(), st.sets(st.sampled_from(sorted(PATHS))))
@settings(max_examples=100, deadline=None)
def test_new_cgroups_that_inherit_everything_are_narrowed(new: Values, born: set[str]) -> None:
    unset = {PATHS[name] for name in born}
    observed = {
        path: CgroupValues() if any(path.is_below(pod) for pod in unset) else values
        for path, values in new.items()
    }
    check_plan(ALL, observed, new, LEAVES)


def cgroups_of(moment: Moment) -> Iterator[PodCgroups]:
    for uid, each in moment.pods.items():
        path = BURSTABLE / uid
        yield PodCgroups(
            pod=each, path=path, leaves={path / c.name: c.name for c in each.containers}
        )


@given(rules(), histories())
@settings(max_examples=100, deadline=None)
def test_pods_that_come_and_go_never_meet_on_their_way(rules: Rules, history: list[Step]) -> None:
    def desired(moment: Moment) -> Values:
        return desired_values(rules, moment.state, cgroups_of(moment), (BURSTABLE,))

    for before, after in pairwise(moments(rules, history)):
        old, new = desired(before), desired(after)
        observed = {path: old.get(path, CgroupValues()) for path in new}
        pods: dict[str, tuple[CgroupPath, ...]] = {
            each.pod.uid: tuple(each.leaves) for each in cgroups_of(after)
        }
        check_plan(rules.topology.cpus, observed, new, pods)


A, B = KUBEPODS / "a", KUBEPODS / "b"


def plan(desired: dict[CgroupPath, str], observed: dict[CgroupPath, str]) -> list[str]:
    """Plan CPU lists, and return the writes as text."""
    want = {path: CgroupValues(cpus=CPUSet.parse(text)) for path, text in desired.items()}
    have = {path: CgroupValues(cpus=CPUSet.parse(text)) for path, text in observed.items()}
    return [f"{w.path.name} {w.phase.name} {w.value}" for w in plan_writes(want, have)]


@pytest.mark.parametrize(
    ("wanted", "had", "writes"),
    [
        ("0-3", "0-3", []),
        ("0-1", "0-3", ["a SHRINK 0-1"]),
        ("0-3", "0-1", ["a GROW 0-3"]),
        ("1-4", "0-3", ["a SHRINK 1-3", "a GROW 1-4"]),
        ("4-5", "0-3", ["a MOVE 4-5"]),
    ],
)
def test_a_set_is_first_cut_down_to_what_stays(wanted: str, had: str, writes: list[str]) -> None:
    assert plan({A: wanted}, {A: had}) == writes


def test_everything_is_given_up_before_anything_is_taken() -> None:
    assert plan({A: "0-3", B: "4-5"}, {A: "0-1", B: "2-5"}) == ["b SHRINK 4-5", "a GROW 0-3"]


def test_whoever_leaves_cpus_moves_before_others_come_onto_them() -> None:
    third = KUBEPODS / "c"
    moved = plan({A: "2", B: "3", third: "4"}, {A: "1", B: "2", third: "3"})
    assert moved == ["c MOVE 4", "b MOVE 3", "a MOVE 2"]


def test_two_that_change_places_do_so_in_any_order() -> None:
    assert plan({A: "2", B: "1"}, {A: "1", B: "2"}) == ["a MOVE 2", "b MOVE 1"]


def test_children_shrink_before_their_parents_and_grow_after_them() -> None:
    child = A / "child"
    assert plan({A: "0", child: "0"}, {A: "0-1", child: "0-1"}) == ["child SHRINK 0", "a SHRINK 0"]
    assert plan({A: "0-1", child: "0-1"}, {A: "0", child: "0"}) == ["a GROW 0-1", "child GROW 0-1"]


def test_a_cgroup_that_is_not_there_is_left_out() -> None:
    assert plan({A: "0-1", B: "2"}, {A: "0"}) == ["a GROW 0-1"]


def test_an_unset_file_is_compared_with_what_the_cgroup_inherits() -> None:
    inherits = {A: CgroupValues(effective_cpus=CPUSet.parse("0-3"))}
    wants = {A: CgroupValues(cpus=CPUSet.parse("0-3"))}
    (write,) = plan_writes(wants, inherits)
    assert (write.phase, write.value) == (Phase.SHRINK, "0-3")


def test_what_is_not_ours_is_left_alone() -> None:
    had = {A: CgroupValues(cpus=CPUSet([1]), mems=NodeSet([0]), cpu_max=CpuMax(5000))}
    assert plan_writes({A: CgroupValues()}, had) == []


def test_quotas_come_after_cpus_and_memory_nodes_last() -> None:
    wants = CgroupValues(cpus=CPUSet([0, 1]), mems=NodeSet([1]), cpu_max=CpuMax())
    had = CgroupValues(cpus=CPUSet([0]), mems=NodeSet([0]), cpu_max=CpuMax(5000))
    writes = plan_writes({A: wants, B: wants}, {A: had, B: had})
    assert [(w.file, w.value) for w in writes] == [
        ("cpuset.cpus", "0-1"),
        ("cpuset.cpus", "0-1"),
        ("cpu.max", "max 100000"),
        ("cpu.max", "max 100000"),
        ("cpuset.mems", "1"),
        ("cpuset.mems", "1"),
    ]


@pytest.mark.parametrize("wanted", [CgroupValues(cpus=CPUSet()), CgroupValues(mems=NodeSet())])
def test_an_empty_set_is_an_error_and_never_a_write(wanted: CgroupValues) -> None:
    had = CgroupValues(cpus=CPUSet([0]), mems=NodeSet([0]))
    with pytest.raises(IdSetError, match="must never be written"):
        plan_writes({A: wanted}, {A: had})
