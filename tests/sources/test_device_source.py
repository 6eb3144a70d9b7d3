"""Whether there is a kubelet to ask for devices, and what is said where there is none."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from agent.config import AgentConfig, load
from agent.device_source import find_pod_resources
from agent.own_config import Devices


def config(host: Path, devices: Devices | None = None) -> AgentConfig:
    return replace(load(None), host_root=host, devices=devices or Devices())


@pytest.fixture
def host(tmp_path: Path) -> Path:
    (tmp_path / "var/lib/kubelet/pod-resources").mkdir(parents=True)
    return tmp_path


def test_the_folder_is_enough_for_asking(host: Path) -> None:
    with capture_logs() as logs:
        assert find_pod_resources(config(host)) is not None
    assert logs == []


def test_without_the_folder_nobody_is_asked_and_it_is_said(tmp_path: Path) -> None:
    with capture_logs() as logs:
        assert find_pod_resources(config(tmp_path)) is None
    assert [(line["log_level"], line["why"]) for line in logs] == [
        ("info", f"there is no folder {tmp_path}/var/lib/kubelet/pod-resources")
    ]


def test_without_grpc_nobody_is_asked_and_the_cure_is_told(
    host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with capture_logs() as logs:
        assert find_pod_resources(config(host)) is None
    assert [(line["log_level"], line["why"]) for line in logs] == [
        ("warning", "grpcio is missing: pip install 'numalet[devices]'")
    ]


def test_off_is_off_without_a_word(host: Path) -> None:
    with capture_logs() as logs:
        assert find_pod_resources(config(host, Devices(ask="off"))) is None
    assert logs == []
