"""Verdicts as JSON: the document of ``numalet plan -o json``, also part of the status.

``memory`` of a container maps NUMA nodes to bytes.  A key is a Linux list of nodes: ``"0"`` for
what is on one node, and ``"0-1"`` for what is charged to a group of nodes as a whole.  Nobody knows
how much of the latter is on which node: the memory manager keeps only the sum right, the kernel
places a page where it is first touched, and the kubelet's own formats (``numaAffinity`` of
``memory_manager_state``, ``topology`` of PodResources) name the group beside one size, too.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

from agent.core.cgroups import MemoryMax
from agent.core.desired import PodCgroups, desired_values
from agent.core.explain import ContainerVerdict, PodVerdict
from agent.core.pods import MEMORY, Pod, PodUID
from agent.core.startup import Rules
from agent.core.state import Block, NodeState, PodEntry
from agent.ports import Remembered

Json = dict[str, object]
CgroupsOf = Callable[[Pod], PodCgroups]
_Extras = Mapping[str | None, Json]
_NONE: _Extras = MappingProxyType({})


def plan_document(
    rules: Rules,
    state: NodeState,
    verdicts: Iterable[PodVerdict],
    cgroups_of: CgroupsOf | None = None,
) -> Json:
    """Return the whole document; sets are Linux lists, ``cpuMax`` is ``max|<us> <period us>``.

    Without a CPU manager all CPUs are the default CPU set.  Where the agent itself makes the cgroups,
    ``cgroups_of`` says where they are, and the document then does, too.
    """
    return {
        **sets_document(rules, state),
        "pods": list(pod_documents(rules, state, verdicts, cgroups_of)),
    }


def sets_document(rules: Rules, state: NodeState) -> Json:
    """Return the part of the document that is about no pod."""
    default = state.default if rules.manages_cpus else rules.topology.cpus
    return {"defaultCpuSet": str(default), "reservedCpuSet": str(rules.reserved)}


def pod_documents(
    rules: Rules,
    state: NodeState,
    verdicts: Iterable[PodVerdict],
    cgroups_of: CgroupsOf | None = None,
) -> Iterator[Json]:
    """Yield the part of the document about each pod."""
    for verdict in verdicts:
        extras = _extras(rules, state, cgroups_of(verdict.pod)) if cgroups_of else _NONE
        yield _pod_document(verdict, extras)


def _extras(rules: Rules, state: NodeState, cgroups: PodCgroups) -> _Extras:
    """Return what is told of a pod's cgroup (None), and of each container's by its name."""
    names = {cgroups.path: None, **cgroups.leaves}
    return {
        names[path]: {
            "cgroup": str(path),
            "cpuWeight": values.cpu_weight,
            "memoryMax": str(values.memory_max or MemoryMax()),
        }
        for path, values in desired_values(rules, state, [cgroups], ()).items()
    }


def _pod_document(verdict: PodVerdict, extras: _Extras) -> Json:
    return {
        "namespace": verdict.pod.namespace,
        "name": verdict.pod.name,
        "uid": verdict.pod.uid,
        "qosClass": verdict.qos.value,
        "admitted": verdict.admitted,
        "reason": verdict.reason,
        "message": verdict.message,
        "cpuPool": str(verdict.pool),
        "numaNodes": str(verdict.nodes),
        "cpuMax": str(verdict.cpu_max),
        **extras.get(None, {}),
        "containers": [
            {**_container_document(c), **extras.get(c.name, {})} for c in verdict.containers
        ],
    }


def _container_document(verdict: ContainerVerdict) -> Json:
    return {
        "name": verdict.name,
        "kind": verdict.kind.value,
        "verdict": verdict.verdict.value,
        "reason": verdict.reason,
        "cpus": str(verdict.cpus),
        "mems": str(verdict.mems),
        "cpuMax": str(verdict.cpu_max),
        "memory": bytes_by_nodes(verdict.memory),
    }


def bytes_by_nodes(blocks: Iterable[Block]) -> dict[str, int]:
    """Return bytes of memory by NUMA node, or by the list of a group that is charged as a whole."""
    return {str(b.nodes): b.size_bytes for b in blocks if b.resource == MEMORY}


def state_document(remembered: Remembered, generation: int, written_at_s: float) -> Json:
    """Return a checkpoint as ``numalet state show -o json`` prints it."""
    state = remembered.state
    return {
        "generation": generation,
        "writtenAt": written_at_s,
        "defaultCpuSet": str(state.default),
        "pods": [_entry_document(remembered, uid, entry) for uid, entry in state.pods.items()],
        "rejected": {
            uid: {"reason": r.reason, "message": r.message}
            for uid, r in remembered.rejections.items()
        },
    }


def _entry_document(remembered: Remembered, uid: PodUID, entry: PodEntry) -> Json:
    pod = remembered.pods.get(uid)
    return {
        "uid": uid,
        "namespace": "" if pod is None else pod.namespace,
        "name": "" if pod is None else pod.name,
        "cpuPool": str(entry.held),
        "containers": [
            {
                "name": name,
                "cpus": str(entry.cpus.get(name, "")),
                "memory": bytes_by_nodes(entry.memory.get(name, ())),
            }
            for name in dict.fromkeys((*entry.cpus, *entry.memory))
        ],
    }
