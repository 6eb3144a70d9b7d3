"""The client of the kubelet's PodResources, against a real server on a unix socket."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from agent.sources import podresources_pb2
from agent.sources.pod_resources import (
    KubeletSilent,
    NoPodResources,
    PodResources,
    is_installed,
)
from agent.sources.podresources_pb2 import NUMANode
from tests.scratch import scratch_folder

from .kubelet_server import GPU, Kubelet, devices, pod

PROJECT = Path(__file__).resolve().parents[2]
RECORDED = PROJECT / "tests/data/recordings"


@pytest.fixture
def kubelet() -> Iterator[Kubelet]:
    with scratch_folder() as folder:
        yield Kubelet(Path(folder) / "kubelet.sock")


def test_devices_are_told_by_pod_container_and_resource(kubelet: Kubelet) -> None:
    kubelet.pods = [
        pod("a", app=[*devices(GPU, [0], [1]), *devices("example.com/nic", [])], side=[]),
        pod("b", app=devices(GPU, [0, 1])),
    ]
    with kubelet.serving():
        assert PodResources(kubelet.socket).devices() == {
            "default/a": {"app": {GPU: ((0,), (1,)), "example.com/nic": ()}, "side": {}},
            "default/b": {"app": {GPU: ((0, 1),)}},
        }


def test_the_numa_node_0_is_an_empty_message() -> None:
    assert NUMANode(ID=0).SerializeToString() == b""
    assert NUMANode.FromString(b"").ID == 0


@pytest.mark.parametrize("name", ["none", "static"])
def test_what_a_real_kubelet_answered_is_understood(kubelet: Kubelet, name: str) -> None:
    recorded = json.loads((RECORDED / f"podresources.{name}.json").read_text())["List"]
    kubelet.answer = lambda _context: bytes.fromhex(recorded["response_hex"])
    with kubelet.serving():
        told = PodResources(kubelet.socket).devices()
    assert told == {
        f"{p['namespace']}/{p['name']}": {c["name"]: {} for c in p["containers"]}
        for p in recorded["response"]["pod_resources"]
    }


def test_a_socket_that_was_never_there_is_not_waited_for(kubelet: Kubelet) -> None:
    with pytest.raises(NoPodResources, match=r"there is no such socket; mount the folder"):
        PodResources(kubelet.socket).devices()


def test_a_kubelet_that_restarts_is_waited_for_and_found_again(kubelet: Kubelet) -> None:
    client = PodResources(kubelet.socket)
    for i in range(2):
        kubelet.pods = [pod(f"p{i}")]
        with kubelet.serving():
            assert client.devices() == {f"default/p{i}": {}}
        with pytest.raises(KubeletSilent, match="UNAVAILABLE"):
            client.devices()


def test_a_kubelet_that_hangs_costs_no_more_than_the_deadline(kubelet: Kubelet) -> None:
    kubelet.answer = kubelet.hang
    with (
        kubelet.serving(),
        pytest.raises(KubeletSilent, match=r"kubelet\.sock: DEADLINE_EXCEEDED"),
    ):
        PodResources(kubelet.socket, deadline_s=0.1).devices()


def test_what_a_kubelet_refuses_with_is_told(kubelet: Kubelet) -> None:
    kubelet.answer = kubelet.refuse
    with kubelet.serving(), pytest.raises(KubeletSilent, match="UNKNOWN: pod gone in namespace"):
        PodResources(kubelet.socket).devices()


def test_nonsense_is_no_answer(kubelet: Kubelet) -> None:
    kubelet.answer = lambda _context: b"\xff\xff\xff"
    with kubelet.serving(), pytest.raises(KubeletSilent):
        PodResources(kubelet.socket).devices()


def test_a_kubelet_without_this_api_is_not_waited_for(kubelet: Kubelet) -> None:
    kubelet.method = "/v1alpha1.PodResourcesLister/List"
    with kubelet.serving(), pytest.raises(NoPodResources, match="it has no PodResources v1"):
        PodResources(kubelet.socket).devices()


def test_what_protoc_wrote_is_what_the_proto_says(tmp_path: Path) -> None:
    source, made = "agent/sources/podresources.proto", tmp_path / "descriptors"
    protoc = [sys.executable, "-m", "grpc_tools.protoc"]
    words = [f"-I{PROJECT}", f"--descriptor_set_out={made}", source]
    subprocess.run([*protoc, *words], check=True, cwd=PROJECT)
    (compiled,) = FileDescriptorSet.FromString(made.read_bytes()).file
    shipped = FileDescriptorProto.FromString(podresources_pb2.DESCRIPTOR.serialized_pb)
    for message in compiled.message_type:  # only a descriptor that is compiled alone has them
        for each in message.field:
            each.ClearField("json_name")
    assert shipped == compiled


def test_grpc_is_imported_only_when_a_kubelet_is_asked() -> None:
    program = (
        "import sys, agent.app; assert 'grpc' not in sys.modules;"
        "from agent.sources.pod_resources import is_installed; assert is_installed();"
        "assert 'grpc' not in sys.modules and 'google.protobuf.message' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=PROJECT)
    assert is_installed()
