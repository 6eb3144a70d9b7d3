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
        seen: Seen | None = None,
    ) -> None:
        """Begin with what is free in ``state``; ``seen`` is what a pod that runs already has."""
        self.rules = rules
        self.pod = pod
        self.init_inside_app = init_inside_app
        self.seen = seen
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
        self.offers: list[tuple[str | None, Offer]] = []
        self.departures: set[str] = set(rules.departures)

    @property
    def available(self) -> int:
        """CPU bits that may become exclusive: the default set without the reserved CPUs."""
        return self.default & ~self.rules.reserved.bits

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

    def seen_cpus(self, name: str | None, count: int, within: int) -> int:
        """Return the CPU bits that a container (None: the pod) runs on, 0 unless they may be its."""
        if self.seen is None:
            return 0
        bits = self.seen.cpus.get(name, CPUSet()).bits
        return bits if bits.bit_count() == count and not bits & ~within else 0

    def seen_on_others(self, container: Container | None) -> int:
        """Return the CPU bits that a container must leave to others of a pod that runs already.

        An ordinary init container has ended: others may have taken its CPUs over.
        """
        has_ended = container is not None and container.kind is Kind.INIT
        if self.seen is None or container is None or (has_ended and not self.keeps_init_apart):
            return 0
        bits = 0
        for other in self.pod.containers:
            if other is not container and self.demand.cpus[other.name]:
                bits |= self.seen.cpus.get(other.name, CPUSet()).bits
        return bits

    def seen_nodes(self, name: str | None) -> NodeSet | None:
        """Return the NUMA nodes that hold the memory of a container (None: the pod) that runs.

        One that does not run now has its pod's.
        """
        if self.seen is None:
            return None
        nodes = self.seen.mems.get(name, self.seen.mems.get(None))
        return nodes if nodes and nodes <= self.rules.topology.node_ids else None

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
