"""What an agent that starts takes over: its checkpoint, as far as that can be true, and what runs."""

from collections.abc import Mapping
from dataclasses import replace

import structlog

from agent.cgroup_tree import CgroupTree
from agent.core.admission import without
from agent.core.adoption import Adopted, adopt, adopt_running, is_bare_hold
from agent.core.cgroups import Seen
from agent.core.cpuset import CPUSet
from agent.core.demand import Demand
from agent.core.desired import PodCgroups, container_cpus
from agent.core.pods import Pod, PodUID
from agent.core.restore import fits, rebuild
from agent.core.startup import Rules
from agent.core.state import NodeState, PodEntry
from agent.errors import CgroupError, InputError
from agent.ports import Remembered

log = structlog.get_logger(component="recall")


def believable(rules: Rules, remembered: Remembered) -> Remembered:
    """Return what is remembered as it can be on this machine; nobody loses what he alone holds.

    Of two pods with the same CPUs the first keeps them; the other is decided on anew.
    """
    owners = _first_owners(remembered.state.pods)
    robbed = remembered.state.pods.keys() - owners.keys()
    for uid in sorted(robbed):
        log.error(
            "second_owner_forgotten",
            uid=uid,
            cpus=str(remembered.state.pods[uid].held),
            what="the checkpoint gave these CPUs to two pods; this one is decided on anew",
        )
    state = remembered.state
    if robbed or not fits(rules, state):
        log.warning("state_rebuilt", why="the checkpoint, the machine or the configuration changed")
        state = rebuild(rules, owners)
    pods = {uid: pod for uid, pod in remembered.pods.items() if uid not in robbed}
    return replace(remembered, state=state, pods=pods)


def take_over(
    rules: Rules, tree: CgroupTree, state: NodeState, pods: Mapping[PodUID, Pod]
) -> Adopted:
    """Return the state in which all that runs keeps its CPUs, though the checkpoint has it not.

    Of a pod that ran without a name, and has one now, it is read anew what is its own.
    """
    for uid in pods.keys() & state.pods.keys():
        if is_bare_hold(state.pods[uid]):
            state = without(rules, state, uid)
    places = _places(tree, pods)
    seen = _seen(tree, [*places, *_unknown(tree, places)])
    taken = adopt_running(rules, state, pods, seen, _shared(tree))
    for uid in taken.outdated:
        log.warning(
            "checkpoint_outdated",
            uid=uid,
            cpus=str(state.pods[uid].held),
            what="others run on the CPUs that the checkpoint gives to this pod",
        )
    for uid in taken.adopted:
        pod = pods.get(uid)
        log.warning(
            "running_pod_adopted",
            uid=uid,
            pod="in no list: its CPUs are its own until it ends" if pod is None else pod.full_name,
            cpus=str(taken.state.pods[uid].held),
        )
    return taken


def told_by_slices(
    rules: Rules, tree: CgroupTree, state: NodeState, pods: Mapping[PodUID, Pod]
) -> dict[PodUID, Pod]:
    """Return pods with the containers that can be told by what their cgroups say of exclusive CPUs.

    It is for the time before a list: without bundles only a pod's status has the names, which is not
    remembered, and one without a name would lose its CPUs until the API server answers.  CPUs that one
    without a name has in any case tell nobody: the sandbox is on them, too.
    """
    told = {}
    for uid, pod in pods.items():
        cpus = state.pods.get(uid, PodEntry()).cpus
        # An app container may go on with the CPUs of an init container: the later name counts.
        names = {cpus[c.name]: c.name for c in pod.containers if c.name in cpus}
        names.pop(container_cpus(Demand(rules, pod), state, None), None)
        try:
            ids = tree.ids_by_cpus(pod, names) if names else {}
        except (CgroupError, ValueError) as error:
            log.warning("cgroup_not_read", pod=pod.full_name, what=str(error))
            continue
        if ids:
            told[uid] = replace(pod, container_ids=ids)
    return told


def named(rules: Rules, tree: CgroupTree, state: NodeState, pod: Pod) -> NodeState:
    """Return the state in which a pod that ran without a name holds what it asks for."""
    entry = state.pods.get(pod.uid)
    if entry is None or not is_bare_hold(entry):
        return state
    try:
        seen = tree.seen(tree.of(pod))
    except CgroupError as error:
        log.warning("cgroup_not_read", pod=pod.full_name, what=str(error))
        return state
    apart = without(rules, state, pod.uid)
    adopted = seen and adopt(rules, apart, pod, seen, entry.held)
    return adopted or apart


def _first_owners(entries: Mapping[PodUID, PodEntry]) -> dict[PodUID, PodEntry]:
    owners, held = {}, CPUSet()
    for uid, entry in entries.items():
        if held.isdisjoint(entry.held):
            owners[uid] = entry
            held |= entry.held
    return owners


def _places(tree: CgroupTree, pods: Mapping[PodUID, Pod]) -> list[PodCgroups]:
    places = []
    for pod in pods.values():
        try:
            places.append(tree.of(pod))
        except InputError:
            continue  # told when the pod is taken in
        except CgroupError as error:
            log.warning("cgroup_not_read", pod=pod.full_name, what=str(error))
    return places


def _unknown(tree: CgroupTree, places: list[PodCgroups]) -> list[PodCgroups]:
    try:
        return tree.unknown(places)
    except CgroupError as error:
        log.warning("cgroups_not_listed", what=str(error))
        return []


def _seen(tree: CgroupTree, places: list[PodCgroups]) -> dict[PodUID, Seen]:
    seen = {}
    for cgroups in places:
        try:
            found = tree.seen(cgroups)
        except (CgroupError, ValueError) as error:
            log.warning("cgroup_not_read", pod=cgroups.pod.full_name, what=str(error))
            continue
        if found is not None:
            seen[cgroups.pod.uid] = found
    return seen


def _shared(tree: CgroupTree) -> CPUSet:
    try:
        return tree.shared_cpus()
    except (CgroupError, ValueError):
        return CPUSet()
