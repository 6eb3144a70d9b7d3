"""From a machine and a policy to the rules that every decision uses, or the kubelet's refusal.

Mirrors the order and the words of the kubelet's own start-up: topology manager, CPU manager, memory
manager (kubelet-semantics 9).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from agent.core.cpuset import CPUSet
from agent.core.departures import MORE_THAN_8_NODES, NO_PANIC
from agent.core.distribute import take
from agent.core.masks import Distances
from agent.core.memory import initial_tables
from agent.core.pods import CPU, MEMORY, MILLI
from agent.core.policy import Policy
from agent.core.quantity import format_bytes
from agent.core.state import NodeState
from agent.core.take import Pool, TakeError, TakeOptions
from agent.core.topology import NodeTopology, kubelet_view

TOPOLOGY_POLICIES = ("none", "best-effort", "restricted", "single-numa-node")
SCOPES = ("container", "pod")

FULL_PCPUS_ONLY = "full-pcpus-only"
DISTRIBUTE_NUMA = "distribute-cpus-across-numa"
ALIGN_BY_SOCKET = "align-by-socket"
DISTRIBUTE_CORES = "distribute-cpus-across-cores"
STRICT_RESERVATION = "strict-cpu-reservation"
PREFER_UNCORE = "prefer-align-cpus-by-uncorecache"
CPU_OPTIONS = (
    FULL_PCPUS_ONLY,
    DISTRIBUTE_NUMA,
    ALIGN_BY_SOCKET,
    DISTRIBUTE_CORES,
    STRICT_RESERVATION,
    PREFER_UNCORE,
)
_ALPHA_OPTIONS = (ALIGN_BY_SOCKET, DISTRIBUTE_CORES)
_BETA_OPTIONS = (DISTRIBUTE_NUMA,)
_CONFLICTS = (
    (FULL_PCPUS_ONLY, DISTRIBUTE_CORES),
    (DISTRIBUTE_NUMA, DISTRIBUTE_CORES),
    (PREFER_UNCORE, DISTRIBUTE_CORES),
    (PREFER_UNCORE, DISTRIBUTE_NUMA),
)

CLOSEST = "prefer-closest-numa-nodes"
MAX_NODES = "max-allowable-numa-nodes"
DEFAULT_MAX_NODES = 8
_MOST_DIGITS = 18
"""More do not fit into Go's int."""
_MASK_BITS = 64  # of the kubelet's sets of NUMA nodes (pkg/kubelet/cm/topologymanager/bitmask)

_TRUE = ("1", "t", "T", "true", "TRUE", "True")
_FALSE = ("0", "f", "F", "false", "FALSE", "False")


class StartupRefused(ValueError):
    """The kubelet would not start with this configuration on this machine.

    ``stage`` is the part of it that refuses; the text is the kubelet's.
    """

    def __init__(self, stage: str, text: str) -> None:
        super().__init__(text)
        self.stage = stage


@dataclass(frozen=True, kw_only=True)
class Rules:
    """A policy resolved against a machine: all that a decision needs besides state and pod."""

    topology: NodeTopology
    policy: Policy
    reserved: CPUSet
    cpu_options: frozenset[str] = frozenset()
    prefer_closest: bool = False
    departures: frozenset[str] = field(default_factory=frozenset)
    """Departures by which these rules came to be, such as more than 8 nodes."""

    @property
    def decides_by_budget(self) -> bool:
        """Tell whether pod-level resources are decided on (the gate ``PodLevelResourceManagers``)."""
        return self.policy.gate("PodLevelResourceManagers")

    @property
    def knows_budgets(self) -> bool:
        """Tell whether pod-level resources exist at all (the gate ``PodLevelResources``)."""
        return self.policy.gate("PodLevelResources")

    @property
    def manages_cpus(self) -> bool:
        """Tell whether the CPU manager's policy is ``static``."""
        return self.policy.cpu_policy == "static"

    @property
    def manages_memory(self) -> bool:
        """Tell whether the memory manager's policy is ``Static``."""
        return self.policy.memory_policy == "Static"

    @cached_property
    def take_options(self) -> TakeOptions:
        """The options that change which CPUs are chosen."""
        return _take_options(self.cpu_options)

    @cached_property
    def fence(self) -> int:
        """CPU bits to which exclusive CPUs are confined: all, unless a fence is configured."""
        return (self.policy.fence or self.topology.cpus).bits

    @cached_property
    def withheld(self) -> int:
        """CPU bits that nobody gets exclusively: the reserved ones, and all outside of the fence.

        The latter are no reservation: nothing is subtracted for them, and they stay in the default set.
        """
        return self.reserved.bits | (self.topology.cpus.bits & ~self.fence)

    @cached_property
    def withheld_physical(self) -> int:
        """CPU bits of every core that has a withheld CPU."""
        return sum(bits for bits in self.topology.core_bits.values() if bits & self.withheld)

    @cached_property
    def node_mask(self) -> int:
        """One bit for every NUMA node, with or without CPUs."""
        return self.topology.node_ids.bits

    @cached_property
    def node_of_mask_cpus(self) -> Mapping[int, int]:
        """Bit of a CPU-bearing node -> its CPU bits."""
        return {1 << n: bits for n, bits in self.topology.cpu_bits_by_node.items()}

    @cached_property
    def sockets_of_node(self) -> Mapping[int, int]:
        """Bit of a CPU-bearing node -> one bit for each socket that its CPUs are in."""
        sockets = list(self.topology.cpu_bits_by_socket.values())
        return {
            node: sum(1 << i for i, s in enumerate(sockets) if s & cpus)
            for node, cpus in self.node_of_mask_cpus.items()
        }

    @cached_property
    def distances(self) -> Distances | None:
        """Node distances by node bit where the closest nodes are preferred, else None."""
        if not self.prefer_closest:
            return None
        return self.topology.distances_by_bit

    def initial_state(self) -> NodeState:
        """Return the state in which nothing is assigned."""
        default = self.topology.cpus
        if STRICT_RESERVATION in self.cpu_options:
            default -= self.reserved
        return NodeState(
            default=default if self.manages_cpus else CPUSet(),
            memory=initial_tables(self.topology, dict(self.policy.reserved_memory))
            if self.manages_memory
            else {},
        )


def on_machine(rules: Rules, topology: NodeTopology) -> Rules:
    """Return what of these rules can hold on a machine on which the kubelet would refuse to start.

    ``rules`` are those of a machine that the configuration fitted: all that is reserved is known there.
    """
    topology = kubelet_view(topology)
    return replace(rules, topology=topology, reserved=rules.reserved & topology.cpus)


def start(topology: NodeTopology, policy: Policy) -> Rules:
    """Return the rules for a machine; raises `StartupRefused` where the kubelet would not start."""
    closest, departures = _start_topology_manager(topology, policy)
    options, reserved = _start_cpu_manager(topology, policy)
    _start_memory_manager(topology, policy)
    return Rules(
        topology=topology,
        policy=policy,
        reserved=reserved,
        cpu_options=options,
        prefer_closest=closest,
        departures=departures | _crashes(topology, policy, closest=closest),
    )


def _crashes(topology: NodeTopology, policy: Policy, *, closest: bool) -> frozenset[str]:
    """Return `NO_PANIC` where the kubelet would start, and crash over the first Guaranteed pod."""
    highest = max(topology.node_ids, default=0)
    makes_masks = policy.topology_policy != "none" or policy.memory_policy == "Static"
    lacks_distances = closest and any(len(n.distances) <= highest for n in topology.nodes)
    if lacks_distances or (makes_masks and highest >= _MASK_BITS):
        return frozenset({NO_PANIC})
    return frozenset()


def _start_topology_manager(topology: NodeTopology, policy: Policy) -> tuple[bool, frozenset[str]]:
    stage = "topology_manager"
    if policy.topology_policy == "none":
        return False, frozenset()
    closest, most = False, None
    for name, value in sorted(policy.topology_options.items()):
        if name == CLOSEST:
            closest = _boolean(stage, name, value)
        elif name == MAX_NODES:
            most = _most_nodes(value)
        else:
            raise StartupRefused(stage, f'unknown Topology Manager Policy option: "{name}"')
    departures = frozenset[str]()
    if len(topology.nodes) > (most or DEFAULT_MAX_NODES):
        if most is not None:
            text = f"unsupported on machines with more than {most} NUMA Nodes"
            raise StartupRefused(stage, text)
        departures = frozenset({MORE_THAN_8_NODES})
    if closest and not all(node.distances for node in topology.nodes):
        text = "cannot discover NUMA topology: error getting NUMA distances from cadvisor"
        raise StartupRefused(stage, text)
    if policy.topology_policy not in TOPOLOGY_POLICIES:
        raise StartupRefused(stage, f'unknown policy: "{policy.topology_policy}"')
    if policy.topology_scope not in SCOPES:
        raise StartupRefused(stage, f'unknown scope: "{policy.topology_scope}"')
    return closest, departures


def _most_nodes(value: str) -> int:
    stage = "topology_manager"
    digits = value[1:] if value[:1] in ("+", "-") else value
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS):
        text = (
            f'unable to convert policy option to integer "{MAX_NODES}": '
            f'strconv.Atoi: parsing "{value}": invalid syntax'
        )
        raise StartupRefused(stage, text)
    if int(value) < DEFAULT_MAX_NODES:
        text = f'the minimum value of "{MAX_NODES}" should not be less than {DEFAULT_MAX_NODES}'
        raise StartupRefused(stage, text)
    return int(value)


def _boolean(stage: str, name: str, value: str, prefix: str = "") -> bool:
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    text = f'bad value for option "{name}": strconv.ParseBool: parsing "{value}": invalid syntax'
    raise StartupRefused(stage, prefix + text)


def _start_cpu_manager(topology: NodeTopology, policy: Policy) -> tuple[frozenset[str], CPUSet]:
    stage = "cpu_manager"
    if policy.cpu_policy == "none":
        if policy.cpu_options:
            given = " ".join(f"{k}:{v}" for k, v in sorted(policy.cpu_options.items()))
            text = f"new none policy error: None policy: received unsupported options=map[{given}]"
            raise StartupRefused(stage, text)
        return frozenset(), CPUSet()
    if policy.cpu_policy != "static":
        raise StartupRefused(stage, f'unknown policy: "{policy.cpu_policy}"')
    if CPU not in policy.node_reservation:
        text = "[cpumanager] unable to determine reserved CPU resources for static policy"
        raise StartupRefused(stage, text)
    if policy.node_reservation[CPU] == 0:
        text = (
            "[cpumanager] the static policy requires systemreserved.cpu + kubereserved.cpu "
            "to be greater than zero"
        )
        raise StartupRefused(stage, text)
    options = _cpu_options(policy)
    _check_options(topology, policy, options)
    return options, _reserved_cpus(topology, policy, options)


def _refuse_static(text: str) -> StartupRefused:
    return StartupRefused("cpu_manager", f"new static policy error: {text}")


def _cpu_options(policy: Policy) -> frozenset[str]:
    gates = {
        **dict.fromkeys(_ALPHA_OPTIONS, ("Alpha", "CPUManagerPolicyAlphaOptions")),
        **dict.fromkeys(_BETA_OPTIONS, ("Beta", "CPUManagerPolicyBetaOptions")),
    }
    chosen = set()
    for name, value in sorted(policy.cpu_options.items()):
        if name not in CPU_OPTIONS:
            raise _refuse_static(f'unknown CPU Manager Policy option: "{name}"')
        level, gate = gates.get(name, ("", ""))
        if gate and not policy.gate(gate):
            raise _refuse_static(
                f"CPU Manager Policy {level}-level Options not enabled, "
                f'but option "{name}" provided'
            )
        if _boolean("cpu_manager", name, value, "new static policy error: "):
            chosen.add(name)
    return frozenset(chosen)


def _check_options(topology: NodeTopology, policy: Policy, options: frozenset[str]) -> None:
    for a, b in _CONFLICTS:
        if a in options and b in options:
            raise _refuse_static(
                f"static policy options {a} and {b} can not be used at the same time"
            )
    if ALIGN_BY_SOCKET not in options:
        return
    if policy.topology_policy == "single-numa-node":
        raise _refuse_static(
            "Topolgy manager single-numa-node policy is incompatible with "
            "CPUManager align-by-socket policy option"
        )
    if topology.socket_count > len(topology.cpu_bits_by_node):
        raise _refuse_static(
            "Align by socket is not compatible with hardware where number of sockets "
            "are more than number of NUMA"
        )


def _take_options(options: frozenset[str]) -> TakeOptions:
    return TakeOptions(
        whole_cores=FULL_PCPUS_ONLY in options,
        across_numa=DISTRIBUTE_NUMA in options,
        across_cores=DISTRIBUTE_CORES in options,
        uncore_aligned=PREFER_UNCORE in options,
    )


def _reserved_cpus(topology: NodeTopology, policy: Policy, options: frozenset[str]) -> CPUSet:
    count = -(-policy.node_reservation[CPU] // MILLI)
    reserved = policy.reserved_cpus
    if not reserved:
        picking = _take_options(options)
        try:
            reserved = CPUSet.from_bits(
                take(topology, Pool(topology.cpus.bits, 0), count, picking).bits
            )
        except TakeError:
            reserved = CPUSet()
    if len(reserved) != count:
        raise _refuse_static(
            "[cpumanager] unable to reserve the required amount of CPUs "
            f"(size of {reserved} did not equal {count})"
        )
    unknown = reserved - topology.cpus
    if unknown:
        raise _refuse_static(
            "[cpumanager] unable to build the reserved physical CPUs from the reserved set: "
            f"unknown CPU ID: {min(unknown)}"
        )
    return reserved


def _start_memory_manager(topology: NodeTopology, policy: Policy) -> None:
    stage = "memory_manager"
    if policy.memory_policy == "None":
        return
    if policy.memory_policy == "BestEffort":
        text = 'policy "BestEffort" is not available for platform "linux"'
        raise StartupRefused(stage, text)
    if policy.memory_policy != "Static":
        raise StartupRefused(stage, f'unknown policy: "{policy.memory_policy}"')
    totals: dict[str, int] = {}
    for node, amounts in policy.reserved_memory:
        if node not in topology.node_ids:
            raise StartupRefused(
                stage,
                f"the reserved memory configuration references a NUMA node {node} "
                "that does not exist on this machine",
            )
        for name, amount in amounts.items():
            totals[name] = totals.get(name, 0) + amount
    wanted = {name: v for name, v in policy.node_reservation.items() if name != CPU}
    for name in sorted({*totals, *wanted}):
        total, value = totals.get(name, 0), wanted.get(name, 0)
        if total != value:
            raise StartupRefused(
                stage,
                f'the total amount "{format_bytes(total)}" of type "{name}" is not equal to the '
                f'value "{format_bytes(value)}" determined by Node Allocatable feature',
            )
    if not totals.get(MEMORY):
        raise StartupRefused(stage, "[memorymanager] you should specify the system reserved memory")
