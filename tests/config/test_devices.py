"""What is configured about the devices of pods."""

from pathlib import Path

import pytest

from agent.config import AgentConfig, describe, load
from agent.errors import InputError

AGENT = "apiVersion: numalet.io/v1alpha1\nkind: AgentConfiguration\n"


def loaded(folder: Path, text: str) -> AgentConfig:
    file = folder / "config.yaml"
    file.write_text(AGENT + text)
    return load(file)


def test_without_a_word_the_kubelet_is_asked_at_its_usual_socket() -> None:
    devices = load(None).devices
    assert (devices.ask, devices.limit_s) == ("auto", 10.0)
    assert devices.socket == Path("/var/lib/kubelet/pod-resources/kubelet.sock")


@pytest.mark.parametrize("word", ["off", '"off"', "false"])
def test_off_needs_no_quotes_though_yaml_takes_it_for_a_boolean(tmp_path: Path, word: str) -> None:
    config = loaded(tmp_path, f"devices: {word}\n")
    assert config.devices.ask == "off"
    assert ("devices", "off", f"{tmp_path}/config.yaml:3") in describe(config)


def test_the_limit_and_the_socket_can_be_named(tmp_path: Path) -> None:
    text = "devicesTimeout: 2s\nkubeletPodResources: /srv/kubelet/pod-resources/kubelet.sock\n"
    config = loaded(tmp_path, text)
    assert config.devices.limit_s == 2.0
    assert config.devices.socket == Path("/srv/kubelet/pod-resources/kubelet.sock")
    values = {key: value for key, value, _ in describe(config)}
    assert values["devicesTimeout"] == "2s"
    assert values["kubeletPodResources"] == "/srv/kubelet/pod-resources/kubelet.sock"


@pytest.mark.parametrize("line", ["devices: always", "devices: on", "devicesTimeout: 0s"])
def test_what_is_not_possible_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match=r"config\.yaml:3: devices"):
        loaded(tmp_path, f"{line}\n")
