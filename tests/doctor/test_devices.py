"""Whether the kubelet can be asked for the devices of pods."""

import socket

from agent.core.findings import Level

from .made_up import MadeUpNode

SOCKET = "var/lib/kubelet/pod-resources/kubelet.sock"


def test_a_node_without_the_folder_has_nothing_to_say(node: MadeUpNode) -> None:
    assert node.findings("devices") == []


def test_a_kubelet_that_listens_is_well(node: MadeUpNode) -> None:
    (node.root / SOCKET).parent.mkdir()
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(node.root / SOCKET))
        kubelet.listen()
        (finding,) = node.findings("devices")
    assert finding.level is Level.OK
    assert finding.sentence == f"the kubelet listens on /{SOCKET}"


def test_a_socket_that_nobody_serves_is_told_with_a_cure(node: MadeUpNode) -> None:
    (node.root / SOCKET).parent.mkdir()
    (finding,) = node.findings("devices")
    assert finding.level is Level.WARNING
    assert f"nobody listens on /{SOCKET}" in finding.sentence
    assert "devices: off" in finding.cure

    node.config.write_text(f"{node.config.read_text()}devices: off\n")

    assert node.findings("devices") == []
