"""A kubelet's PodResources API: a real gRPC server on a unix socket, which answers as its test says."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from agent.sources.podresources_pb2 import (
    ContainerDevices,
    ContainerResources,
    ListPodResourcesResponse,
    NUMANode,
    PodResources,
    TopologyInfo,
)

LIST = "/v1.PodResourcesLister/List"
GPU = "nvidia.com/gpu"
Nodes = Sequence[int]
_MOST_CALLS = 64
"""At a time: one that hangs does so until the server ends."""


def raw_identity(data: bytes) -> bytes:
    return data


def devices(resource: str, *places: Nodes) -> list[ContainerDevices]:
    """Return devices as a kubelet lists them, each one alone; one at no node has no topology."""
    return [
        ContainerDevices(
            resource_name=resource,
            device_ids=[f"{resource}-{i}"],
            topology=TopologyInfo(nodes=[NUMANode(ID=n) for n in place]) if place else None,
        )
        for i, place in enumerate(places)
    ]


def pod(name: str, **containers: Sequence[ContainerDevices]) -> PodResources:
    return PodResources(
        name=name,
        namespace="default",
        containers=[ContainerResources(name=c, devices=d) for c, d in containers.items()],
    )


@dataclass
class Kubelet:
    """What the server says; ``answer`` may hang on `closing`, or abort."""

    socket: Path
    pods: list[PodResources] = field(default_factory=list)
    asked: int = 0
    closing: threading.Event = field(default_factory=threading.Event)
    answer: Callable[[grpc.ServicerContext], bytes] | None = None
    method: str = LIST

    def list(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        self.asked += 1
        if self.answer is not None:
            return self.answer(context)
        return ListPodResourcesResponse(pod_resources=self.pods).SerializeToString()

    def hang(self, _context: grpc.ServicerContext) -> bytes:
        self.closing.wait()
        return b""

    def refuse(self, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNKNOWN, "pod gone in namespace default not found")

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Listen; as a kubelet does, on a socket that is made anew."""
        self.socket.unlink(missing_ok=True)
        service, _, call = self.method[1:].partition("/")
        handler = grpc.unary_unary_rpc_method_handler(self.list, raw_identity, raw_identity)
        with ThreadPoolExecutor(_MOST_CALLS) as threads:
            server = grpc.server(threads)
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, {call: handler}),)
            )
            server.add_insecure_port(f"unix://{self.socket}")
            server.start()
            self.closing.clear()
            try:
                yield
            finally:
                self.closing.set()
                server.stop(grace=None).wait()
                self.socket.unlink(missing_ok=True)
