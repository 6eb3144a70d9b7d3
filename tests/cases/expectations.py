"""What a case expects of a node, checked by the key and the words that the entry uses."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from agent.core.admission import Admitted
from agent.core.cpuset import CPUSet
from agent.core.demand import Demand
from agent.core.desired import container_mems
from agent.core.isolation import Isolation, isolation
from agent.core.pods import MEMORY, Kind, PodUID
from agent.core.quantity import whole_bytes
from agent.core.state import PodEntry
from agent.node.checkpoint import COPIES, CheckpointStore
from agent.ports import Remembered
from tests.node.fragile_disks import Clock
from tests.reconciler.rig import World
from tests.scratch import scratch_folder

from .enumeration import equals_enumeration
from .loader import Json, remembered_state
from .story import Node


def check(node: Node, key: str, wanted: Json) -> None:
    """Check one key of an entry's ``expect``; `KeyError` for one that is not known."""
    if key in _MEASURES:
        for term, value in wanted.items():
            assert _MEASURES[key](node, cpus(node, term)) == value, f"{key} of {term}"
    elif key in _AMOUNTS:
        for term, value in wanted.items():
            assert _AMOUNTS[key](node, term) == whole_bytes(str(value)), f"{key} of {term}"
    else:
        _CHECKS[key](node, wanted)


def cpus(node: Node, term: str) -> CPUSet:
    """Return the CPUs that a term names: ``p1/a``, ``p1``, ``cgroup(p1/a)``, ``default``, ``0-7``, …"""
    if " - " in term:
        whole, part = term.split(" - ")
        return cpus(node, whole) - cpus(node, part)
    if term in _NAMED:
        return _NAMED[term](node)
    if re.fullmatch(r"[\d,-]+", term):
        return CPUSet.parse(term)
    if match := re.fullmatch(r"cgroup\((\w+)/(\w+)\)", term):
        return node.cgroup(match[1], match[2])
    if match := re.fullmatch(r"(init|app)_of\((\w+)\)", term):
        return _of_kind(node, match[2], Kind(match[1]))
    uid, _, container = term.partition("/")
    return node.entry(uid).cpus[container] if container else _held(node, uid)


def _held(node: Node, uid: str) -> CPUSet:
    return node.state.pods.get(PodUID(uid), PodEntry()).held


def _union(sets: Iterable[CPUSet]) -> CPUSet:
    return CPUSet(cpu for found in sets for cpu in found)


def _exclusive(node: Node) -> CPUSet:
    return _union(entry.held for entry in node.state.pods.values())


def _pool(node: Node) -> CPUSet:
    (entry,) = node.state.pods.values()
    assert entry.pool is not None
    return entry.pool


def _of_kind(node: Node, uid: str, kind: Kind) -> CPUSet:
    containers = node.pods[PodUID(uid)].containers
    return _union(node.entry(uid).cpus[c.name] for c in containers if c.kind is kind)


_NAMED: Mapping[str, Callable[[Node], CPUSet]] = {
    "default": lambda node: node.state.default,
    "reserved": lambda node: node.rules.reserved,
    "exclusive": _exclusive,
    "pod_set": _pool,
}


def _per_node(node: Node, found: CPUSet) -> dict[int, int]:
    topology = node.rules.topology
    return {n: len(found & topology.cpus_of(n)) for n in topology.nodes_of(found)}


def _caches(node: Node, found: CPUSet) -> int:
    return sum(1 for bits in node.rules.topology.cpu_bits_by_uncore.values() if bits & found.bits)


_MEASURES: Mapping[str, Callable[[Node, CPUSet], object]] = {
    "assign": lambda _, found: str(found),
    "pod_set": lambda _, found: str(found),
    "count": lambda _, found: len(found),
    "held": lambda _, found: len(found),
    "nodes": lambda node, found: list(node.rules.topology.nodes_of(found)),
    "nodes_used": lambda node, found: len(node.rules.topology.nodes_of(found)),
    "per_node": _per_node,
    "l3_used": _caches,
}
"""What is measured of the CPUs of a pod or container."""


def _memory_held(node: Node, uid: str) -> int:
    entry = node.state.pods[PodUID(uid)]
    blocks = entry.memory_pool or [b for held in entry.memory.values() for b in held]
    return sum(block.size_bytes for block in blocks)


_AMOUNTS: Mapping[str, Callable[[Node, Json], int]] = {
    "mem_held": _memory_held,
    "booked": lambda node, i: node.state.memory[i].tables[MEMORY].reserved,
}
"""Bytes of memory of a pod, or on a NUMA node."""


def _verdict(node: Node, wanted: Mapping[str, str]) -> None:
    for uid, verdict in wanted.items():
        is_admitted = isinstance(node.verdicts[PodUID(uid)], Admitted)
        assert verdict == ("granted" if is_admitted else "refused"), uid


def _mems(node: Node, wanted: Mapping[str, str]) -> None:
    for term, nodes in wanted.items():
        uid, _, container = term.partition("/")
        for name in (
            [container] if container else [c.name for c in node.pods[PodUID(uid)].containers]
        ):
            assert str(container_mems(node.entry(uid), name)) == nodes, term


def _shared(node: Node, wanted: list[str]) -> None:
    for term in wanted:
        uid, name = term.split("/")
        pod = node.pods[PodUID(uid)]
        (container,) = (c for c in pod.containers if c.name == name)
        found = isolation(Demand(node.rules, pod), node.entry(uid), container)
        assert found is Isolation.NODE_SHARED, term
        assert node.cgroup(uid, name) == node.state.default, term


def _equal(found: object, wanted: object) -> None:
    assert found == wanted


def _at_most_s(node: Node, wanted: float) -> None:
    assert node.seconds < wanted


def _cores_chosen(node: Node) -> CPUSet:
    """Return the lowest CPU of each core that was chosen, all of them whole."""
    assert _in_whole_cores(node, node.chosen)
    cores = node.rules.topology.core_bits.items()
    return CPUSet(core for core, bits in cores if bits & node.chosen.bits)


_CHECKS: Mapping[str, Callable[[Node, Json], None]] = {
    "startup": lambda _, wanted: _equal("ok", wanted),
    "verdict": _verdict,
    "mems": _mems,
    "shared": _shared,
    "default": lambda node, wanted: _equal(str(node.state.default), wanted),
    "default_by_key": lambda node, wanted: _equal(str(node.state.default), wanted["include"]),
    "online": lambda node, wanted: _equal(str(node.rules.topology.cpus), wanted),
    "allocatable_nodes": lambda node, wanted: _equal(list(node.state.memory), wanted),
    "cores": lambda node, wanted: _equal(str(_cores_chosen(node)), wanted),
    "at_most_s": _at_most_s,
}


def has_property(node: Node, text: str) -> bool:
    """Tell whether an invariant that an entry names holds; of ``A or B``, whether either does."""
    return any(_holds(node, alternative) for alternative in text.split(" or "))


def _holds(node: Node, text: str) -> bool:
    for pattern, holds in _PROPERTIES:
        if match := re.fullmatch(pattern, text):
            return holds(node, *match.groups())
    raise AssertionError(f"the property {text!r} is not understood")


def _promised(node: Node) -> bool:
    node.check_promises()
    return True


def _restarts_as_it_is(node: Node) -> bool:
    before = node.state
    node.restart()
    return node.state == before


def _keeps_what_it_got(node: Node) -> bool:
    return bool(node.given) and all(
        node.state.pods.get(uid, PodEntry()) == entry for uid, entry in node.given.items()
    )


def _keeps_bad_file(node: Node) -> bool:
    """Start an agent on a file that says what the entry remembers, and look for a copy of it."""
    with scratch_folder() as name:
        state = Path(name) / "state"
        state.mkdir()
        found = remembered_state(node.rules, node.pods, node.variant.remembered)
        CheckpointStore(state, Clock()).save(Remembered(state=found))
        bad = (state / COPIES[0]).read_bytes()
        snapshot = World(node.rules, Path(name)).listed()
        kept = [path.read_bytes() for path in state.glob(f"{COPIES[0]}.*")]
        return kept == [bad] and snapshot.state == node.state


def _as_enumerated(node: Node) -> bool:
    (first,) = node.pods.values()
    return equals_enumeration(node.rules.policy, first)


def _in_whole_cores(node: Node, found: CPUSet) -> bool:
    cores = node.rules.topology.core_bits.values()
    return found.bits == sum(bits for bits in cores if bits & found.bits)


def _is_one_core(node: Node, term: str) -> bool:
    return cpus(node, term).bits in node.rules.topology.core_bits.values()


def _are_equal(node: Node, text: str) -> bool:
    return len({cpus(node, term) for term in text.split("==")}) == 1


_PROPERTIES: tuple[tuple[str, Callable[..., bool]], ...] = (
    # What `Node.check_promises` checks after every event anyway.
    ("no_orphan_cpu", _promised),
    ("no offline CPU in any set", _promised),
    ("never_write_empty_cpuset", _promised),
    ("grants_still_fit", _promised),
    (r"booked == recompute\(entries\) after every event", _promised),
    ("deterministic", lambda node: node.again().state == node.state),
    ("independent_of_list_order", lambda node: node.again(backwards=True).state == node.state),
    ("restart_is_idempotent", _restarts_as_it_is),
    ("bad_file_kept_aside", _keeps_bad_file),
    ("equals_bruteforce_on_small_cases", _as_enumerated),
    ("same_cpus_after_container_restart", _keeps_what_it_got),
    # The order in which two cgroups are written is the business of `agent.core.plan`.
    (
        r"disjoint\((\S+),(\S+)\)(?: before \S+ is pinned)?",
        lambda node, a, b: cpus(node, a).isdisjoint(cpus(node, b)),
    ),
    (r"(\S+) subset (\S+)", lambda node, a, b: cpus(node, a) <= cpus(node, b)),
    (r"(\S+) superset (\S+)", lambda node, a, b: cpus(node, b) <= cpus(node, a)),
    (r"(\S+) is made of whole cores", lambda node, a: _in_whole_cores(node, cpus(node, a))),
    (r"(\S+) is one whole core", _is_one_core),
    (r"count\((\S+)\)==(\d+)", lambda node, a, n: len(cpus(node, a)) == int(n)),
    (r"(.+==.+)", _are_equal),
)
