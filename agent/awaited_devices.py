"""Which devices pods have, and who is not decided on before that is known."""

from collections.abc import Iterable
from dataclasses import replace

from agent.core.pods import DeviceNodes, Devices, Pod, PodUID


class AwaitedDevices:
    """What `agent.ports.DevicesFound` has told, and the pods that wait for it.

    Nobody waits unless ``are_told``.  ``remembered`` are pods of the checkpoint, with their devices.
    """

    def __init__(self, remembered: Iterable[Pod], *, are_told: bool) -> None:
        self._are_told = are_told
        self._known = {pod.uid: pod.devices for pod in remembered if pod.devices is not None}
        self.waiting: dict[PodUID, Pod] = {}
        """The pods that are not decided on yet."""

    @property
    def uids(self) -> frozenset[PodUID]:
        """The pods of which anything is remembered."""
        return frozenset(self._known.keys() | self.waiting.keys())

    def known_of(self, pod: Pod) -> Pod:
        """Return a pod with what is known of its devices."""
        devices = self._known.get(pod.uid)
        return pod if pod.devices == devices else replace(pod, devices=devices)

    def hold_back(self, pod: Pod, *, may_be_placed: bool) -> bool:
        """Let a new pod wait, unless it has no reason to; return whether it does."""
        self.waiting.pop(pod.uid, None)
        waits = self._are_told and pod.asks_for_devices and pod.devices is None and may_be_placed
        if waits:
            self.waiting[pod.uid] = pod
        return waits

    def note(self, uid: PodUID, nodes: DeviceNodes | None, *, is_placed: bool) -> Pod | None:
        """Remember what is told, and return the pod that waited for it.

        What a pod was placed by stays; it may only be told afterwards of what was not known then.
        """
        former = self._known.get(uid)
        if former is None or not (former.in_time or former.nodes):
            self._known[uid] = Devices(
                nodes=nodes or {}, in_time=nodes is not None and not is_placed
            )
        return self.waiting.pop(uid, None)

    def forget(self, uid: PodUID) -> None:
        """Forget a pod that has gone."""
        self.waiting.pop(uid, None)
        self._known.pop(uid, None)
