"""A node on which a case happens: its decisions, event by event, as the daemon makes them."""

import re
import time
from collections.abc import Callable
from dataclasses import replace

from agent.core.admission import Admitted, Rejected, admit, container_starts, remove
from agent.core.cpuset import CPUSet
from agent.core.demand import Demand
from agent.core.departures import READMIT
from agent.core.desired import container_cpus
from agent.core.distribute import take
from agent.core.pods import PodUID
from agent.core.restore import fits, rebuild
from agent.core.startup import start
from agent.core.state import NodeState, PodEntry
from agent.core.take import Pool
from tests.conformance.invariants import broken_promises

from .loader import Variant, remembered_state


class Node:
    """One run of a case; raises `agent.core.startup.StartupRefused` where the agent would not start.

    ``given`` is what each pod got when it was first admitted, also after it has gone.
    """

    def __init__(
        self,
        variant: Variant,
        departures: frozenset[str] = frozenset(),
        *,
        backwards: bool = False,
    ) -> None:
        self.variant = variant
        self.departures = departures
        self.backwards = backwards
        self.rules = start(variant.topology, replace(variant.policy, departures=departures))
        self.pods = variant.pods
        self.state = self._restored(remembered_state(self.rules, variant.pods, variant.remembered))
        self.verdicts: dict[PodUID, Admitted | Rejected] = {}
        self.given: dict[PodUID, PodEntry] = {}
        self.chosen = CPUSet()
        self.seconds = 0.0

    def run(self) -> "Node":
        """Let every event happen; the promises must hold after each."""
        self.check_promises()
        for event in self.variant.events:
            before = time.process_time()
            self.happen(event)
            self.seconds += time.process_time() - before
            self.check_promises()
        return self

    def again(self, *, backwards: bool = False) -> "Node":
        """Return another node on which the same has happened."""
        return Node(self.variant, self.departures, backwards=backwards).run()

    def happen(self, event: str) -> None:
        for pattern, act in _EVENTS:
            if match := re.fullmatch(pattern, event):
                act(self, *(group for group in match.groups() if group is not None))
                return
        raise AssertionError(f"the event {event!r} is not understood")

    def restart(self, listed: str = "") -> None:
        """Stop and start; the list that follows names some pods, or all that are known."""
        self.state = self._restored(self.state)
        uids = re.findall(r"\w+", listed) or list(self.verdicts)
        for uid in reversed(uids) if self.backwards else uids:
            self.add(uid)

    def _restored(self, state: NodeState) -> NodeState:
        return state if fits(self.rules, state) else rebuild(self.rules, state.pods)

    def add(self, name: str) -> None:
        uid = PodUID(name)
        verdict = admit(self.rules, self.state, self.pods[uid])
        self.state = verdict.state
        if READMIT not in verdict.departures:
            self.verdicts[uid] = verdict
        if isinstance(verdict, Admitted):
            self.given.setdefault(uid, verdict.entry)

    def add_all(self) -> None:
        for uid in self.pods:
            self.add(uid)

    def tell_again(self) -> None:
        """Something happens to a container of a pod that stays: the pod is told as it was."""
        for uid in self.verdicts:
            self.add(uid)

    def remove(self, name: str) -> None:
        self.state = remove(self.state, PodUID(name))
        del self.verdicts[PodUID(name)]

    def start_container(self, name: str) -> None:
        (pod,) = (p for p in self.pods.values() if name in {c.name for c in p.containers})
        self.state = container_starts(self.state, pod, name)

    def choose_cores(self, count: str) -> None:
        topology = self.rules.topology
        options = replace(self.rules.take_options, whole_cores=True)
        pool = Pool(topology.cpus.bits, 0)
        cpus = int(count) * topology.cpus_per_core
        self.chosen = CPUSet.from_bits(take(topology, pool, cpus, options).bits)

    def entry(self, uid: str) -> PodEntry:
        """Return what a pod holds, or held before it went."""
        return self.state.pods.get(PodUID(uid)) or self.given.get(PodUID(uid), PodEntry())

    def cgroup(self, uid: str, container: str) -> CPUSet:
        """Return the CPUs that a container's cgroup should name."""
        demand = Demand(self.rules, self.pods[PodUID(uid)])
        return container_cpus(demand, self.state, container)

    def check_promises(self) -> None:
        """Check what holds at any time, in any mode."""
        assert not broken_promises(self.rules, self.state, self.pods)
        assert all(
            self.cgroup(uid, c.name) for uid, pod in self.pods.items() for c in pod.containers
        )
        assert booked(self.state) == booked(rebuild(self.rules, self.state.pods))


def booked(state: NodeState) -> dict[tuple[str, str], int]:
    """Return the bytes that are booked, by group of NUMA nodes and type.

    By group, as the kubelet compares them (``validateState``): in which node of a group memory was
    given back depends on the history, and the kubelet's own figures are promised.
    """
    sums: dict[tuple[str, str], int] = {}
    for node in state.memory.values():
        for name, table in node.tables.items():
            key = str(node.cells), name
            sums[key] = sums.get(key, 0) + table.reserved
    return sums


def _nothing(_node: Node, *_names: str) -> None:
    """An init container has ended: its CPUs stay with the pod until the pod goes."""


_EVENTS: tuple[tuple[str, Callable[..., None]], ...] = (
    (r"(?:re)?start|agent restarts", Node.restart),
    (r"list contains (\w+) running", Node.add),
    (r"restart, the list comes in the order ([\w, ]+); .*", Node.restart),
    (r"add all", Node.add_all),
    (r"add (\w+)", Node.add),
    (r"delete (\w+)|(\w+) phase Failed .*", Node.remove),
    (r"(\w+) exits 0", _nothing),
    (r"(\w+) starts", Node.start_container),
    (r"container \w+ dies with a new container id .*|late stop event .*", Node.tell_again),
    (r"choose (\d+) cores", Node.choose_cores),
)
