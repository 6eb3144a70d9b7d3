"""A decision in the making: the node's tables and one pod's entry, changed step by step.

A draft lives only inside one call of `agent.core.admission`; what leaves it is immutable.
"""

from agent.core.cpuset import CPUSet
from agent.core.demand import Demand
from agent.core.departures import INIT_APART
from agent.core.distribute import take
from agent.core.hints import Offer
from agent.core.pods import Pod
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
        self, rules: Rules, state: NodeState, pod: Pod, *, init_inside_app: bool = False
    ) -> None:
        self.rules = rules
        self.pod = pod
        self.init_inside_app = init_inside_app
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
