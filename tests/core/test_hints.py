"""Hints and merges against their enumeration (`tests.core.brute_force`)."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.cpu_allocation import cpu_hints
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.hints import UNSATISFIABLE, HintList, Merged, Merger, Offer
from agent.core.masks import Loose, Sum
from agent.core.memory import memory_hints
from agent.core.pods import MEMORY
from agent.core.policy import Policy
from agent.core.startup import ALIGN_BY_SOCKET, Rules
from agent.core.state import MemoryTable, NodeMemory
from agent.core.topology import NodeTopology
from tests.strategies import HUGE, machine, memory_tables, odd_machines

from . import brute_force
from .brute_force import Hint, Nodes
from .test_masks_spread import calls

few_nodes = odd_machines(max_nodes=5)
more_nodes = odd_machines(min_nodes=6, max_nodes=7, most_cores=2)


@dataclass(frozen=True)
class Offered:
    """What a provider offers, and the same enumerated from the rules."""

    offer: Offer
    hints: list[Hint] | None

    @property
    def raw(self) -> tuple[int, list[Hint] | None]:
        return len(self.offer.resources), self.hints


@dataclass(frozen=True)
class Question:
    topology: NodeTopology
    closest: bool
    offers: list[Offered]

    @property
    def full(self) -> Nodes:
        return frozenset(self.topology.node_ids)

    @property
    def lists(self) -> list[list[Hint]]:
        return brute_force.lists_of(offered.raw for offered in self.offers)

    def merger(self) -> Merger:
        distances = self.topology.distances_by_bit if self.closest else None
        return Merger(self.topology.node_ids.bits, distances)

    def distance(self, a: int, b: int) -> int:
        found = self.topology.distance(a, b)
        assert found is not None
        return found


@st.composite
def cpu_offers(draw: st.DrawFn, topology: NodeTopology) -> Offered:
    cpus = sorted(topology.cpus)
    some = st.sets(st.sampled_from(cpus))
    available, reusable = draw(some), draw(st.one_of(st.just(set[int]()), some))
    count = draw(st.integers(1, len(cpus) + 1))
    align = draw(st.booleans())
    rules = Rules(
        topology=topology,
        policy=Policy(),
        reserved=CPUSet(),
        cpu_options=frozenset({ALIGN_BY_SOCKET} if align else ()),
    )
    hints = cpu_hints(rules, count, CPUSet(available).bits, CPUSet(reusable).bits)
    socket_of_cpu = {cpu: core.socket for core in topology.cores for cpu in core.cpus}
    cpus_of_node = {n: set(CPUSet.from_bits(b)) for n, b in topology.cpu_bits_by_node.items()}
    enumerated = brute_force.cpu_hints(
        count,
        cpus_of_node,
        available,
        reusable,
        (socket_of_cpu, topology.socket_count) if align else None,
    )
    return Offered(Offer("cpu", ("cpu",), hints), enumerated)


@st.composite
def memory_offers(draw: st.DrawFn, topology: NodeTopology) -> Offered:
    tables = draw(memory_tables(topology))
    types = st.sampled_from((MEMORY, HUGE, "hugepages-1Gi"))
    request = draw(st.dictionaries(types, st.integers(0, 12), min_size=1))
    masks = st.sets(st.sampled_from([n.id for n in topology.nodes]), min_size=1).map(
        lambda nodes: NodeSet(nodes).bits
    )
    reusable = draw(st.dictionaries(st.tuples(masks, types), st.integers(0, 6), max_size=3))
    hints = memory_hints(tables, request, reusable)
    enumerated = brute_force.memory_hints(tables, request, reusable)
    return Offered(Offer("memory", () if hints is None else tuple(request), hints), enumerated)


@st.composite
def questions(draw: st.DrawFn, topologies: st.SearchStrategy[NodeTopology]) -> Question:
    """Return offers of up to three providers, some without preference or satisfaction."""
    topology = draw(topologies)
    nothing = st.just(Offered(Offer("cpu"), None))
    impossible = st.just(Offered(Offer("memory", (MEMORY, HUGE), UNSATISFIABLE), []))
    cpu, memory = cpu_offers(topology), memory_offers(topology)
    offers = [
        draw(st.one_of(cpu, cpu, cpu, nothing)),
        draw(st.one_of(memory, memory, memory, impossible)),
        *draw(st.lists(memory, max_size=1)),
    ]
    return Question(topology, draw(st.booleans()), offers)


def nodes_of(mask: int | None) -> Nodes | None:
    return None if mask is None else frozenset(NodeSet.from_bits(mask))


def check_lists(question: Question) -> None:
    for offered in question.offers:
        hints = offered.offer.hints
        if hints is None:
            assert offered.hints is None
        else:
            assert [(nodes_of(m), p) for m, p in hints.enumerate()] == offered.hints
            sizes = [len(nodes) for nodes, _ in offered.hints or () if nodes is not None]
            assert hints.smallest() == min(sizes, default=None)


def check_merges(question: Question) -> None:
    offers = [offered.offer for offered in question.offers]
    merger, lists = question.merger(), question.lists
    merged = merger.merge(offers)
    distance = question.distance if question.closest else None
    expected = brute_force.merge(lists, question.full, distance)
    assert (nodes_of(merged.mask), merged.preferred) == expected
    single = merger.merge_single_node(offers)
    expected = brute_force.merge_single_node(lists, question.full)
    assert (nodes_of(single.mask), single.preferred) == expected


@given(questions(few_nodes))
@settings(max_examples=500, deadline=None)
def test_lists_and_merges_are_those_of_the_enumeration(question: Question) -> None:
    check_lists(question)
    check_merges(question)


@given(questions(more_nodes))
@settings(max_examples=60, deadline=None)
def test_six_and_seven_nodes_agree_with_the_enumeration_too(question: Question) -> None:
    check_lists(question)
    check_merges(question)


NODES = 4
ALL_NODES = frozenset(range(NODES))
masks_of_some = st.integers(1, (1 << NODES) - 1)
families = st.builds(
    lambda universe, sums, must, least: Loose(universe, tuple(sums), must & universe, least),
    st.one_of(st.just((1 << NODES) - 1), masks_of_some),
    st.lists(
        st.builds(
            Sum,
            st.fixed_dictionaries({1 << n: st.integers(0, 3) for n in range(NODES)}),
            st.integers(0, 6),
        ),
        max_size=2,
    ),
    st.one_of(st.just(0), st.just(0), masks_of_some),
    st.integers(1, 2),
)
any_lists = st.builds(
    HintList,
    preferred_size=st.integers(1, 3),
    loose=st.one_of(st.none(), families, families),
    listed=st.frozensets(masks_of_some, max_size=3),
    preferred_sockets=st.sampled_from((0, 0, 1, 2)),
    sockets_of_node=st.fixed_dictionaries(
        {1 << n: st.sampled_from((0b01, 0b10, 0b11, 0b100)) for n in range(NODES)}
    ),
)
any_offers = st.builds(
    Offer,
    st.just("some"),
    st.sampled_from((("a",), ("a",), ("a", "b"))),
    st.one_of(st.none(), any_lists, any_lists, any_lists),
)


@given(st.lists(any_offers, min_size=1, max_size=3))
@settings(max_examples=500, deadline=None)
def test_lists_that_no_manager_makes_are_merged_by_the_same_rules(offers: list[Offer]) -> None:
    lists = brute_force.lists_of(
        (
            len(offer.resources),
            None if offer.hints is None else [(nodes_of(m), p) for m, p in offer.hints.enumerate()],
        )
        for offer in offers
    )
    merger = Merger((1 << NODES) - 1)
    merged = merger.merge(offers)
    assert (nodes_of(merged.mask), merged.preferred) == brute_force.merge(lists, ALL_NODES, None)
    preferred = merger.merge_preferred(offers)
    assert preferred.preferred == merged.preferred
    assert not preferred.preferred or preferred == merged
    single = merger.merge_single_node(offers)
    expected = brute_force.merge_single_node(lists, ALL_NODES)
    assert (nodes_of(single.mask), single.preferred) == expected


@given(questions(few_nodes))
@settings(max_examples=100, deadline=None)
def test_the_merged_hint_is_one_that_every_preferred_list_has(question: Question) -> None:
    offers = [offered.offer for offered in question.offers]
    merged = question.merger().merge(offers)
    if merged.preferred and merged.mask is not None:
        hints = [offer.hints for offer in offers if offer.hints is not None]
        assert all(h.contains(merged.mask) and h.prefers(merged.mask) for h in hints)


@given(questions(few_nodes))
@settings(max_examples=50, deadline=None)
def test_the_order_of_providers_does_not_matter(question: Question) -> None:
    offers = [offered.offer for offered in question.offers]
    assert question.merger().merge(offers[::-1]) == question.merger().merge(offers)


def listed(*masks: int, preferred_size: int) -> HintList:
    return HintList(preferred_size=preferred_size, listed=frozenset(masks))


def at_least(nodes: int, *, of: int) -> HintList:
    """Every mask with this many nodes or more, of a machine's first nodes; the fewest preferred."""
    amounts = {1 << i: 1 for i in range(of)}
    return HintList(preferred_size=nodes, loose=Loose((1 << of) - 1, (Sum(amounts, nodes),)))


def offer(hints: HintList | None, resources: int = 1) -> Offer:
    return Offer("some", tuple(f"type{i}" for i in range(resources)), hints)


def test_no_preference_of_anybody_merges_to_the_whole_machine() -> None:
    offers = [Offer("cpu"), Offer("memory")]
    assert Merger(0b111).merge(offers) == Merged(0b111, preferred=True)
    assert Merger(0b111).merge_single_node(offers) == Merged(None, preferred=True)


def test_the_lowest_node_that_both_prefer_is_chosen() -> None:
    offers = [offer(at_least(1, of=3)), offer(listed(0b010, 0b100, preferred_size=1))]
    assert Merger(0b111).merge(offers) == Merged(0b010, preferred=True)
    assert Merger(0b111).merge_single_node(offers) == Merged(0b010, preferred=True)


def test_what_one_provider_cannot_satisfy_is_never_preferred() -> None:
    offers = [offer(at_least(1, of=3)), offer(UNSATISFIABLE)]
    assert offers[1].unsatisfiable
    assert Merger(0b111).merge(offers) == Merged(0b001, preferred=False)
    assert Merger(0b111).merge_single_node(offers) == Merged(None, preferred=False)


def test_what_nobody_can_satisfy_goes_to_the_whole_machine() -> None:
    assert Merger(0b11).merge([offer(UNSATISFIABLE)]) == Merged(0b11, preferred=False)


def test_hints_of_different_sizes_meet_in_what_is_as_wide_as_the_wider_needs() -> None:
    offers = [offer(at_least(1, of=3)), offer(at_least(2, of=3), resources=2)]
    assert Merger(0b111).merge(offers) == Merged(0b011, preferred=False)


def test_hints_that_meet_nowhere_fall_back_to_the_whole_machine() -> None:
    offers = [offer(listed(0b01, preferred_size=1)), offer(listed(0b10, preferred_size=1))]
    assert Merger(0b11).merge(offers) == Merged(0b11, preferred=False)


def test_a_narrower_overlap_is_taken_where_none_is_wide_enough() -> None:
    offers = [offer(listed(0b011, preferred_size=2)), offer(listed(0b110, preferred_size=2))]
    assert Merger(0b111).merge(offers) == Merged(0b010, preferred=False)


@pytest.mark.parametrize("wide", [0b0110, 0b1110])
def test_a_wider_overlap_is_the_last_resort(wide: int) -> None:
    offers = [
        offer(listed(0b00001, wide, preferred_size=1)),
        offer(listed(0b10000, wide, preferred_size=1)),
    ]
    assert Merger(0b11111).merge(offers) == Merged(wide, preferred=False)


def test_three_lists_agree_only_on_what_all_three_have() -> None:
    offers = [
        offer(listed(0b01, 0b10, preferred_size=1)),
        offer(listed(0b10, preferred_size=1)),
        offer(listed(0b01, 0b10, preferred_size=1)),
    ]
    assert Merger(0b11).merge(offers) == Merged(0b10, preferred=True)


def test_closer_nodes_are_preferred_to_lower_ones_only_on_demand() -> None:
    table = [[10, 30, 30, 12], [30, 10, 30, 30], [30, 30, 10, 30], [12, 30, 30, 10]]
    distances = {1 << a: {1 << b: table[a][b] for b in range(4)} for a in range(4)}
    offers = [offer(at_least(2, of=4))]
    assert Merger(0b1111).merge(offers) == Merged(0b0011, preferred=True)
    assert Merger(0b1111, distances).merge(offers) == Merged(0b1001, preferred=True)


# How many calls a merge may take on a big machine: all masks of 64 nodes are 18 million million
# million; a search that loses its cuts is far beyond this at once.
FEW_CALLS = 60_000


def fragmented(topology: NodeTopology, tenths_free: int) -> int:
    """Leave so many tenths of the CPUs free, scattered in a way that repeats on no machine."""
    return CPUSet(cpu for cpu in topology.cpus if cpu * cpu % 97 % 10 < tenths_free).bits


def partly_used_memory(topology: NodeTopology) -> dict[int, NodeMemory]:
    """Give every third node an assignment, and every node another amount of each type."""
    tables = {}
    for node in topology.nodes:
        used = node.id % 3 == 0
        by_type = {}
        for i, name in enumerate((MEMORY, HUGE, "hugepages-1Gi")):
            free = 100 - (node.id * 37 + i * 11) % 60 if used else 100
            by_type[name] = MemoryTable(100, 0, 100, 100 - free, free)
        tables[node.id] = NodeMemory(int(used), NodeSet([node.id]), by_type)
    return tables


@pytest.mark.parametrize("nodes_per_socket", [1, 4, 16])
@pytest.mark.parametrize("nodes", [36, 64])
@pytest.mark.parametrize("closest", [False, True])
@pytest.mark.parametrize("tenths_free", [2, 5, 10])
def test_big_machines_visit_few_masks(
    nodes: int, nodes_per_socket: int, tenths_free: int, *, closest: bool
) -> None:
    topology = machine(
        sockets=nodes // nodes_per_socket, nodes_per_socket=nodes_per_socket, cores_per_node=4
    )
    rules = Rules(topology=topology, policy=Policy(), reserved=CPUSet(), prefer_closest=closest)
    tables, available = partly_used_memory(topology), fragmented(topology, tenths_free)
    for count in (4, 12, 24):
        for need in (40, 140, 310):
            request = {MEMORY: need, HUGE: need // 2, "hugepages-1Gi": need - 7}

            def decide(count: int = count, request: Mapping[str, int] = request) -> None:
                cpu = cpu_hints(rules, count, available, 0)
                memory = memory_hints(tables, request, {})
                offers = [Offer("cpu", ("cpu",), cpu), Offer("memory", tuple(request), memory)]
                assert Merger(rules.node_mask, rules.distances).merge(offers).mask

            assert calls(decide) < FEW_CALLS, (count, need)
