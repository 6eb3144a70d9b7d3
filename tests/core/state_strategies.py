"""Any state that the types allow, sensible or not."""

from hypothesis import strategies as st

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.pods import PodUID
from agent.core.state import Affinity, Block, MemoryTable, NodeMemory, NodeState, PodEntry

names = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=8)
uids = names.map(PodUID)
cpu_sets = st.sets(st.integers(0, 80), max_size=8).map(CPUSet)
node_sets = st.sets(st.integers(0, 70), min_size=1, max_size=4).map(NodeSet)
amounts = st.integers(0, 2**64 - 1)
resources = st.sampled_from(["memory", "hugepages-2Mi", "hugepages-1Gi"])
block_lists = st.lists(st.builds(Block, node_sets, resources, amounts), max_size=3).map(tuple)
tables = st.builds(MemoryTable, amounts, amounts, amounts, amounts, amounts)
nodes = st.builds(
    NodeMemory, st.integers(0, 9), node_sets, st.dictionaries(resources, tables, max_size=3)
)
affinities = st.builds(Affinity, st.none() | node_sets, preferred=st.booleans())
no_affinities = st.just(dict[str, Affinity]())
firsts = st.builds(
    PodEntry, pool=st.none() | cpu_sets, cpus=st.dictionaries(names, cpu_sets, max_size=3)
)


def states(
    affinity: st.SearchStrategy[dict[str, Affinity]] = no_affinities,
    first: st.SearchStrategy[PodEntry | None] = st.none(),  # noqa: B008 - strategies are immutable
) -> st.SearchStrategy[NodeState]:
    """Without ``affinity`` and ``first``, as in the kubelet's files, no pod has any."""
    entries = st.builds(
        PodEntry,
        pool=st.none() | cpu_sets,
        cpus=st.dictionaries(names, cpu_sets, max_size=3),
        memory_pool=st.none() | block_lists,
        memory=st.dictionaries(names, block_lists, max_size=3),
        affinity=affinity,
        first=first,
    )
    return st.builds(
        NodeState,
        default=cpu_sets,
        pods=st.dictionaries(uids, entries.filter(lambda e: e != PodEntry()), max_size=4),
        memory=st.dictionaries(st.integers(0, 70), nodes, max_size=3),
    )
