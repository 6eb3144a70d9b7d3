"""A decision in the making: the node's tables and one pod's entry, changed step by step.

A draft lives only inside one call of `agent.core.admission`; what leaves it is immutable.
"""

from agent.core.cgroups import Seen
from agent.core.cpuset import CPUSet, NodeSet
from agent.core.demand import Demand
from agent.core.departures import INIT_APART
from agent.core.distribute import take
from agent.core.hints import Offer
from agent.core.pods import Container, Kind, Pod
from agent.core.startup import Rules
from agent.core.state import Affinity, Block, NodeMemory, NodeState, PodEntry
from agent.core.take import Pool

NO_AFFINITY = Affinity(None, preferred=False)
TOPOLOGY_AFFINITY_ERROR = "TopologyAffinityError"


class Refusal(Exception):
    """The pod is rejected, with the kubelet's reason and message."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


def unexpected(error: Exception) -> Refusal:
    """Wrap an error of a manager as the kubelet does (``UnexpectedAdmissionError``)."""
    message = f"Allocate failed due to {error}, which is unexpected"
    return Refusal("UnexpectedAdmissionError", message)


class Draft:
    """The tables while one pod is placed."""

    def __init__(
        self,
        rules: Rules,
        state: NodeState,
        pod: Pod,
        *,
        init_inside_app: bool = False,
        has: Seen | PodEntry | None = None,
    ) -> None:
        """Begin with what is free in ``state``.

        ``has`` is what a pod that runs already has: as its cgroups say, or as its entry said, and
        then it may ask for other amounts.
        """
        self.rules = rules
        self.pod = pod
        self.init_inside_app = init_inside_app
        self.former = has if isinstance(has, PodEntry) else None
        self.seen = _seen_in(has) if isinstance(has, PodEntry) else has
        self.demand = Demand(rules, pod)
        self.default = state.default.bits
        self.tables: dict[int, NodeMemory] = dict(state.memory)
        self.pool: int | None = None
        self.cpus: dict[str, int] = {}
        self.memory_pool: tuple[Block, ...] | None = None
        self.memory: dict[str, tuple[Block, ...]] = {}
        self.affinity: dict[str, Affinity] = {}
        self.reusable_cpus = 0
        self.reusable_memory: dict[tuple[int, str], int] = {}
        self.kept_memory: dict[str, tuple[Block, ...]] = {}
        self.offers: list[tuple[str | None, Offer]] = []
        self.departures: set[str] = set(rules.departures)

    @property
    def available(self) -> int:
        """CPU bits that may become exclusive: the default set without what is withheld."""
        return self.default & ~self.rules.withheld

    @property
    def keeps_init_apart(self) -> bool:
        """Tell whether app containers take nothing over from init containers (opt-in departure)."""
        return INIT_APART in self.rules.policy.departures

    def take(self, available: int, count: int, unowned: int = 0) -> int:
        """Choose CPUs by the configured options, noting departures."""
        pool = Pool(available, unowned)
        taken = take(self.rules.topology, pool, count, self.rules.take_options)
        self.departures |= taken.departures
        return taken.bits

    def seen_nodes(self, name: str | None) -> NodeSet | None:
        """Return the NUMA nodes that hold the memory of a container (None: the pod) that runs.

        One that does not run now has its pod's.
        """
        if self.seen is None:
            return None
        nodes = self.seen.mems.get(name, self.seen.mems.get(None))
        return nodes if nodes and nodes <= self.rules.topology.node_ids else None

    @property
    def is_strict(self) -> bool:
        """Tell whether the topology policy refuses what it cannot align."""
        return self.rules.policy.topology_policy in ("restricted", "single-numa-node")

    def misaligned(self) -> Refusal:
        """Return the topology manager's refusal."""
        message = "Resources cannot be allocated with Topology locality"
        if self.demand.by_budget:
            by_container = self.rules.policy.topology_scope == "container"
            where = "with a container-level" if by_container else "under pod-scope"
            message = (
                f"Pod Scope pod with pod-level resources failed admission {where} topology manager"
            )
        return Refusal(TOPOLOGY_AFFINITY_ERROR, message)

    def has_given_up_memory(self, container: Container) -> bool:
        """Tell whether an ordinary init container ended, and its memory went to others.

        Of a pod that runs, one without memory is taken for such, though it may have had none.
        """
        return (
            self.former is not None
            and container.kind is Kind.INIT
            and container.name not in self.former.memory
        )

    def entry(self) -> PodEntry:
        """Return what the pod holds now."""
        return PodEntry(
            pool=None if self.pool is None else CPUSet.from_bits(self.pool),
            cpus={name: CPUSet.from_bits(bits) for name, bits in self.cpus.items()},
            memory_pool=self.memory_pool,
            memory=self.memory,
            affinity=self.affinity,
        )

    @property
    def holds_nothing(self) -> bool:
        """Tell whether the pod got neither CPUs nor memory of its own."""
        return not (
            self.cpus or self.memory or self.pool is not None or self.memory_pool is not None
        )


def _seen_in(entry: PodEntry) -> Seen:
    """Return what an entry gives to a pod; one without a pool has all that its containers have."""
    cpus = dict[str | None, CPUSet](entry.cpus.items())
    cpus[None] = entry.held if entry.pool is None else entry.pool
    blocks = dict[str | None, tuple[Block, ...]](entry.memory.items())
    blocks[None] = entry.memory_pool or ()
    mems = {name: NodeSet(n for block in of for n in block.nodes) for name, of in blocks.items()}
    return Seen(cpus=cpus, mems={name: nodes for name, nodes in mems.items() if nodes})
