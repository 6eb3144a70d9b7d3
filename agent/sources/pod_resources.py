"""A client of the kubelet's PodResources API v1: which devices it has given to which container.

Only `List` is called.  All kubelets since 1.20 have it, while `Get` came later, behind a gate, and
answers UNKNOWN for every pod that the kubelet does not know yet.  It tells of sidecars and app
containers; ordinary init containers are not in it.  The NUMA node 0 is an empty message on the wire.

Pods have names in this API, and no UIDs.  So what is told of a pod that was made again under its old name
can be its predecessor's, as long as the kubelet has not seen the deletion: `agent.sources.kubelet_devices`
waits for the pod's own cgroup then.

grpcio is an optional extra, and 17 MiB of memory: it is imported when first asked.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from agent.core.pods import DeviceNodes
from agent.errors import EnvironmentProblem

if TYPE_CHECKING:
    import grpc

    from agent.sources.podresources_pb2 import ContainerResources, ListPodResourcesResponse

DEADLINE_S = 1.0
_LIST = "/v1.PodResourcesLister/List"
_MOST_BYTES = 16 << 20
"""As the kubelet's own clients have it (``DefaultPodResourcesMaxSize``)."""


def is_installed() -> bool:
    """Tell whether the extra ``numalet[devices]`` is there; imports nothing of it."""
    return bool(find_spec("grpc") and find_spec("google") and find_spec("google.protobuf"))


class NoPodResources(EnvironmentProblem):
    """There is nobody to ask, and none to wait for."""


class KubeletSilent(EnvironmentProblem):
    """The kubelet did not answer this time."""


class PodResources:
    """The kubelet that listens on ``socket``.

    Each question has a connection of its own: a kubelet that restarts makes its socket anew, and between
    two questions there may be days.
    """

    def __init__(self, socket: Path, *, deadline_s: float = DEADLINE_S) -> None:
        self._socket = socket
        self._deadline_s = deadline_s
        self._has_answered = False

    def devices(self) -> Mapping[str, DeviceNodes]:
        """Return what containers have, by ``namespace/name`` of their pods.

        Raises `NoPodResources` where there is no such API, `KubeletSilent` where it does not answer; a
        socket that was there before is waited for.
        """
        import grpc  # noqa: PLC0415 - an optional extra

        try:
            answer = self._list()
        except grpc.RpcError as error:
            raise self._problem(error) from error
        self._has_answered = True
        return {
            f"{pod.namespace}/{pod.name}": {c.name: _devices(c) for c in pod.containers}
            for pod in answer.pod_resources
        }

    def _list(self) -> "ListPodResourcesResponse":
        import grpc  # noqa: PLC0415 - as above

        from agent.sources import podresources_pb2 as api  # noqa: PLC0415 - as above

        options = (
            ("grpc.max_receive_message_length", _MOST_BYTES),
            # Otherwise a new connection waits for the back-off of the one before.
            ("grpc.use_local_subchannel_pool", 1),
        )
        with grpc.insecure_channel(f"unix://{quote(str(self._socket))}", options) as channel:
            ask = channel.unary_unary(
                _LIST,
                request_serializer=api.ListPodResourcesRequest.SerializeToString,
                response_deserializer=api.ListPodResourcesResponse.FromString,
            )
            return ask(api.ListPodResourcesRequest(), timeout=self._deadline_s)

    def _problem(self, error: "grpc.RpcError") -> EnvironmentProblem:
        import grpc  # noqa: PLC0415 - as above

        what = f"the kubelet does not tell of devices on {self._socket}"
        if not self._has_answered and not self._socket.exists():
            return NoPodResources(
                f"{what}: there is no such socket",
                cure="mount the folder that it is in, set kubeletPodResources, or devices: off",
            )
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return NoPodResources(f"{what}: it has no PodResources v1", cure="it came with 1.20")
        return KubeletSilent(f"{what}: {error.code().name}: {error.details()}")


def _devices(container: "ContainerResources") -> Mapping[str, tuple[tuple[int, ...], ...]]:
    found: dict[str, tuple[tuple[int, ...], ...]] = {}
    for devices in container.devices:
        ids = tuple(node.ID for node in devices.topology.nodes)
        found[devices.resource_name] = found.get(devices.resource_name, ()) + (
            (ids,) if ids else ()
        )
    return found
