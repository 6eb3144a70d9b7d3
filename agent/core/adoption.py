"""Take over what runs: who owns what, read back from the cgroups of running pods.

Only where the checkpoint does not know a pod: it was lost, or is older than the cgroups.  What a
cgroup says is believed if it is what the pod asks for, and nobody else is seen on the same CPUs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from agent.core import init_inside_app
from agent.core.admission import place
from agent.core.cgroups import Seen
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.demand import Demand
from agent.core.draft import Draft, Refusal
from agent.core.pods import Amounts, Pod, PodUID
from agent.core.restore import rebuild
from agent.core.startup import Rules
from agent.core.state import UNNAMED, Block, NodeState, PodEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The state with all that runs; ``outdated`` held in the former state what others run on."""

    state: NodeState
    adopted: tuple[PodUID, ...] = ()
    outdated: tuple[PodUID, ...] = ()


def adopt_running(
    rules: Rules,
    state: NodeState,
    pods: Mapping[PodUID, Pod],
    seen: Mapping[PodUID, Seen],
    shared: CPUSet,
) -> Adopted:
    """Return the state in which every running pod that is not in it keeps what it runs on.

    ``seen`` has every running pod, also those without a `Pod`: nobody knows what these ask for, so
    they hold all that they alone run on; where ``shared`` is empty, only who runs on nothing else.
    ``shared`` are CPUs that certainly are no one's own.  A pod of the state that is not seen on its
    CPUs gives way to one that is: its entry is older.
    """
    own = _own_cpus(rules, seen, shared)
    claims = {
        uid: cpus for uid, cpus in own.items() if _is_claim(rules, pods.get(uid), seen[uid], cpus)
    }
    outdated = _outdated(state, seen, claims)
    if outdated:
        left = {uid: entry for uid, entry in state.pods.items() if uid not in outdated}
        state = rebuild(rules, left)
    adopted = []
    for uid, cpus in own.items():
        if uid in state.pods:
            continue
        pod = pods.get(uid)
        if pod is not None:
            after = adopt(rules, state, pod, seen[uid], cpus)
            if after is None and shared:
                after = _as_seen(Demand(rules, pod), state, seen[uid], cpus)
        else:
            after = (
                _hold(state, uid, cpus, is_all=uid in claims) if uid in claims or shared else None
            )
        if after is not None:
            state = after
            adopted.append(uid)
    return Adopted(state=state, adopted=tuple(adopted), outdated=outdated)


def _outdated(
    state: NodeState, seen: Mapping[PodUID, Seen], claims: Mapping[PodUID, CPUSet]
) -> tuple[PodUID, ...]:
    """Return the pods of the state that are not where it has them: none unless it is older.

    It is if a pod that it does not know is seen on CPUs that it gives to somebody who is not there.
    """
    nobody = Seen()

    def contradicted(by: Iterable[PodUID]) -> tuple[PodUID, ...]:
        claimed = CPUSet.from_bits(sum(claims[uid].bits for uid in by))
        return tuple(
            uid
            for uid, entry in state.pods.items()
            if entry.held & (claimed - seen.get(uid, nobody).all_cpus)
        )

    if not contradicted(claims.keys() - state.pods.keys()):
        return ()
    moved = (u for u, e in state.pods.items() if u in claims and not e.held <= seen[u].all_cpus)
    return tuple(dict.fromkeys([*contradicted(claims), *moved]))


def adopt(rules: Rules, state: NodeState, pod: Pod, seen: Seen, own: CPUSet) -> NodeState | None:
    """Return the state in which a running pod keeps its memory, and out of ``own`` its CPUs.

    None where its cgroups do not say what it asks for, and where it asks for nothing.  No hints are
    merged: it was admitted once.
    """
    demand, apart = Demand(rules, pod), replace(state, default=state.default & own)
    if not _owns_cpus(demand) and seen.mems.get(None) in (None, rules.topology.memory_nodes):
        return None  # nothing that would tell it from a pod that was rejected
    inside = init_inside_app.applies(rules, pod)
    draft = Draft(rules, apart, pod, init_inside_app=inside, has=_with_pool(demand, seen))
    try:
        place(draft)
    except Refusal:
        return None
    entry = draft.entry()
    if draft.holds_nothing or not _keeps(demand, entry, seen):
        return None
    return NodeState(
        default=state.default - entry.held,
        pods={**state.pods, pod.uid: entry},
        memory=draft.tables,
    )


def _as_seen(demand: Demand, state: NodeState, seen: Seen, own: CPUSet) -> NodeState | None:
    """Return the state in which a running pod holds what it is seen on, whatever it asks for.

    It was resized, and that did not fit.  Only where the default CPU set is known can it be told from
    a pod that was rejected.
    """
    rules, pod = demand.rules, demand.pod
    cpus = {
        c.name: seen.cpus[c.name]
        for c in pod.containers
        if c.name in seen.cpus and seen.cpus[c.name] <= own
    }
    if not cpus or not _owns_cpus(demand):
        return None
    has_pool = demand.by_budget and seen.cpus.get(None, CPUSet()) <= own
    pool = own if has_pool else None
    if pool is not None:
        rest = pool
        for name, held in cpus.items():
            rest -= held if demand.cpus[name] else CPUSet()
        rest = rest or pool
        cpus = {c.name: cpus.get(c.name, rest) for c in pod.containers}
    mems = {name: nodes for name, nodes in seen.mems.items() if rules.manages_memory}
    nodes = min(mems.values(), key=len, default=None)
    entry = PodEntry(
        pool=pool,
        cpus=cpus,
        memory_pool=_blocks(nodes, demand.pod_memory) if has_pool and nodes else None,
        memory={n: _blocks(mems[n], demand.memory[n]) for n in cpus if n in mems},
    )
    return rebuild(rules, {**state.pods, pod.uid: entry})


def _blocks(nodes: NodeSet, amounts: Amounts) -> tuple[Block, ...]:
    return tuple(Block(nodes, name, amount) for name, amount in sorted(amounts.items()))


def is_bare_hold(entry: PodEntry) -> bool:
    """Tell whether an entry is that of a running pod of which nothing is known but its CPUs."""
    return (entry.pool is not None and not entry.cpus) or UNNAMED in entry.cpus


def _hold(state: NodeState, uid: PodUID, cpus: CPUSet, *, is_all: bool) -> NodeState | None:
    """Let a pod hold CPUs, None where no more are left; ``is_all`` says that it runs on no others."""
    held = cpus & state.default
    if not held:
        return None
    entry = PodEntry(pool=held) if is_all else PodEntry(cpus={UNNAMED: held})
    return replace(state, default=state.default - held, pods={**state.pods, uid: entry})


def _own_cpus(rules: Rules, seen: Mapping[PodUID, Seen], shared: CPUSet) -> dict[PodUID, CPUSet]:
    """Return the CPUs of the machine on which only one pod is seen, for each pod."""
    once, several = 0, shared.bits | rules.withheld
    for one in seen.values():
        bits = one.all_cpus.bits
        several |= once & bits
        once |= bits
    free = rules.topology.cpus.bits & ~several
    return {uid: CPUSet.from_bits(one.all_cpus.bits & free) for uid, one in seen.items()}


def _is_claim(rules: Rules, pod: Pod | None, seen: Seen, own: CPUSet) -> bool:
    """Tell whether a pod is seen on CPUs that seem to be its own."""
    if pod is None:
        return bool(own) and own == seen.all_cpus & rules.topology.cpus
    demand = Demand(rules, pod)
    needed = max((demand.cpus[c.name] for c in pod.containers if c.name in seen.cpus), default=0)
    return _owns_cpus(demand) and len(own) >= max(1, needed)


def _owns_cpus(demand: Demand) -> bool:
    return demand.rules.manages_cpus and bool(demand.pod_cpus or any(demand.cpus.values()))


def _with_pool(demand: Demand, seen: Seen) -> Seen:
    """Say what the pod itself has where its cgroup says more.

    An ephemeral container adds the default CPU set to it, one without memory of its own all nodes.
    """
    pool = CPUSet()
    for c in demand.pod.containers:
        pool |= seen.cpus.get(c.name, CPUSet())
    whole = seen.cpus.get(None, CPUSet())
    mems = dict(seen.mems)
    named = [nodes for name, nodes in mems.items() if name is not None]
    if named and demand.by_budget:
        mems[None] = min(named, key=len)
    cpus = {**seen.cpus, None: whole if len(whole) == demand.pod_cpus else pool}
    return Seen(cpus=cpus, mems=mems)


def _keeps(demand: Demand, entry: PodEntry, seen: Seen) -> bool:
    """Tell whether every container that is seen, and has CPUs of its own, stays on them."""
    return all(
        entry.cpus.get(c.name) == seen.cpus[c.name]
        for c in demand.pod.containers
        if c.name in seen.cpus and (demand.cpus[c.name] or entry.pool is not None)
    )
