"""The device manager's part: hints by which CPUs and memory follow devices that a pod already has.

Mirrors what ``pkg/kubelet/cm/devicemanager/topology_hints.go`` of Kubernetes v1.36 does for devices that
are allocated (``generateDeviceTopologyHints``): a mask of NUMA nodes is a hint if it touches every
device, for each resource apart.  Three things differ, since the kubelet that gave the devices looked at
no topology:

* The smallest such mask is preferred.  A kubelet that still had the choice would prefer no more nodes
  than other devices of its machine could have come from.
* Devices without a topology count for nothing, also beside others of their resource that have one.
* Whoever gets neither CPUs nor memory by hints is not judged by his devices: there is nothing to align,
  and to reject him would not move them.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from agent.core.cpuset import NodeSet
from agent.core.hints import HintList, Offer
from agent.core.masks import Loose, Sum, node_bits, smallest_size
from agent.core.pods import Pod
from agent.core.startup import Rules


def with_devices(
    rules: Rules, pod: Pod, container: str | None, offers: tuple[Offer, ...]
) -> tuple[Offer, ...]:
    """Return offers with those for the devices of a container (None: of the whole pod) before them."""
    if all(offer.hints is None for offer in offers):
        return offers
    found = _places(rules, pod, container)
    return (*(_offer(rules, name, places) for name, places in found.items()), *offers)


def device_nodes(rules: Rules, pod: Pod, container: str | None) -> NodeSet:
    """Return the NUMA nodes that the devices of a container (None: of the whole pod) are at."""
    masks = chain.from_iterable(_places(rules, pod, container).values())
    return NodeSet.from_bits(_union(masks))


def _offer(rules: Rules, resource: str, places: list[int]) -> Offer:
    single = (place for place in places if place.bit_count() == 1)
    several = (place for place in places if place.bit_count() > 1)
    touching = Loose(
        universe=rules.node_mask,
        sums=tuple(Sum(dict.fromkeys(node_bits(place), 1), need=1) for place in several),
        must=_union(single),
    )
    hints = HintList(preferred_size=smallest_size(touching) or 0, loose=touching)
    return Offer("devices", (resource,), hints)


def _places(rules: Rules, pod: Pod, container: str | None) -> Mapping[str, list[int]]:
    """Return by resource where devices are, each place once: node bits, of this machine only."""
    found: dict[str, set[int]] = {}
    for resource, devices in _devices(pod, container):
        places = (NodeSet(i for i in ids if i in rules.topology.node_ids) for ids in devices)
        found.setdefault(resource, set()).update(place.bits for place in places if place)
    return {name: sorted(found[name]) for name in sorted(found) if found[name]}


def _devices(pod: Pod, container: str | None) -> Iterator[tuple[str, Iterable[tuple[int, ...]]]]:
    for name, by_resource in pod.devices.nodes.items() if pod.devices is not None else ():
        if container in (None, name):
            yield from by_resource.items()


def _union(masks: Iterable[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
