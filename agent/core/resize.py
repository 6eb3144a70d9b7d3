"""Follow a pod that runs and now asks for other amounts, in place.

The kubelet's static policies refuse to resize a Guaranteed pod with CPUs of its own (v1.36), so there
is nothing to mirror.  Here the pod is placed by the same steps as a new one (`agent.core.admission`),
but every container and the pool keep what they have as far as they still ask for it
(`agent.core.keeping`), and stay on the NUMA nodes of their affinity:

* What grows takes CPUs there, first those that the pod has already: left by finished init containers,
  given up by siblings, or for a slice of the pool new in the pool, then of the pod shared pool.
* What does not fit there leaves the nodes under the topology policies none and best-effort;
  restricted and single-numa-node refuse it, with the words with which they refuse a new pod.  Memory
  is extended, or refused, likewise.
* What shrinks gives up what it grew by first, then what is off its nodes.
* Who had nothing of his own until now is placed like a new one.

Not kept are CPUs that are reserved or offline by now; slices of a pool that with ``full-pcpus-only``
shrinks to whole cores; and those of ordinary init containers where the pool or a sidecar needs them.
"""

from dataclasses import replace

from agent.core.admission import Admitted, Rejected, admit, charged, decide, without
from agent.core.demand import Demand
from agent.core.departures import LEAKED_CPUS
from agent.core.pods import Pod
from agent.core.startup import Rules
from agent.core.state import NodeState, PodEntry


def resize(rules: Rules, state: NodeState, pod: Pod) -> Admitted | Rejected:
    """Decide on what a pod of the state asks for now; one that holds nothing yet is admitted.

    A pod that asks for what it has changes nothing.  On `Rejected` it keeps what it has: ``state`` is
    the one given, and ``leftover`` the pod's entry in it.
    """
    former = state.pods.get(pod.uid)
    if former is None:
        return admit(rules, state, pod)
    verdict = decide(rules, without(rules, state, pod.uid), pod, former)
    if isinstance(verdict, Rejected):
        departures = verdict.departures - {LEAKED_CPUS}
        return replace(verdict, state=state, leftover=former, departures=departures)
    if _places(verdict.entry) == _places(former):
        return replace(verdict, state=state, entry=former)
    entry = replace(verdict.entry, first=_first(Demand(rules, pod), former, verdict.entry))
    after = verdict.state
    if charged(entry) == charged(former):
        # Charging anew may divide the amounts of a group of nodes otherwise.
        after = replace(after, memory=state.memory)
    if pod.uid in after.pods:
        after = replace(after, pods={**state.pods, pod.uid: entry})
    return replace(verdict, state=after, entry=entry)


def with_demand_of(known: Pod, pod: Pod) -> Pod:
    """Return a pod with the demand that it was placed by, and all else as it is now."""
    return replace(
        known,
        ephemeral_containers=pod.ephemeral_containers,
        container_ids=pod.container_ids,
        ended_init=pod.ended_init,
    )


def _places(entry: PodEntry) -> tuple[object, ...]:
    return entry.pool, entry.cpus, entry.memory_pool, entry.memory


def _first(demand: Demand, former: PodEntry, entry: PodEntry) -> PodEntry | None:
    """Return what the pod and its containers have had longest, None where that is all they have."""
    base = former.first or former
    pool = entry.pool if base.pool is None or entry.pool is None else base.pool & entry.pool
    slices = {name: held for name, held in entry.cpus.items() if demand.cpus[name]}
    cpus = {name: base.cpus.get(name, held) & held for name, held in slices.items()}
    return None if (pool, cpus) == (entry.pool, slices) else PodEntry(pool=pool, cpus=cpus)
