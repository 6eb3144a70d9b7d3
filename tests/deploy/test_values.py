"""What the chart's schema lets through is what an agent and a DaemonSet can use."""

import json
import subprocess
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel

from agent.config import load
from agent.kubelet_config import KubeletConfiguration
from agent.own_config import DEPARTURES, AgentConfiguration

from .tools import CHART, complaints, config_text, documents, pod_spec, program, templated

REFUSED = (
    "observe=1",
    "privileged=true",
    "runtime=dockerd",
    "runtime=null",
    "runtime=cri-o,shimSandboxes=true",
    "image.digest=latest",
    "image.repository=registry.example/numalet:0.1.0",
    "image.repository=https://registry.example/numalet",
    "image.tag=a/b",
    "maxUnavailable=0",
    "maxUnavailable=0%",
    "maxUnavailable=all",
    "maxUnavailable=null",
    "nodeSelector.a=true",
    "resources.requests.memory=lots",
    "resources.requests.memory=100 Mi",
    "tolerations[0].operators=Exists",
    "tolerations[0].effect=NoRun",
    "config.agent.hostRoot=/",
    "config.agent.metricsAddress=0.0.0.0:80",
    "config.agent.metricsAddress=127.0.0.1:9402",
    "config.agent.metricsAddress=localhost:9402",
    "config.agent.metricsAddress=[::1]:9402",
    "config.agent.metricsAddress=null",
    "config.agent.statusSocket=/tmp/status.sock",
    "config.agent.onRejection=delete",
    "config.agent.onrejection=evict",
    "config.agent.driftInterval=10",
    "config.agent.driftInterval=0s",
    "config.agent.driftInterval=ten",
    "config.agent.memoryMargin=256",
    "config.agent.minDefaultCPUs=-1",
    "config.agent.departures.pod-quota=false",
    "config.agent.coexistence=ignore",
    "config.agent.coexistence.fence=8-",
    "config.agent.podSelector.label.a=b",
    "config.kubelet.kind=AgentConfiguration",
    "config.kubelet.topologyManagerPolicy=bestEffort",
    "config.kubelet.reservedSystemCPUs=a",
    "config.kubelet.kubeReserved.cpu=half",
    r"config.kubelet.evictionHard.memory\.available=5%%",
)
AGENT = {
    "hostRoot": "/host",
    "stateDir": "/host/var/lib/numalet",
    "statusSocket": "/run/numalet/status.sock",
    "metricsAddress": "[::]:9402",
    "observe": True,
    "departures": dict.fromkeys(sorted(DEPARTURES), True),
    "logFormat": "json",
    "logLevel": "debug",
    "driftInterval": "1.5m",
    "mems": "soft",
    "memsDeadline": "500ms",
    "memoryMargin": "1.5Gi",
    "minDefaultCPUs": 2,
    "podSelector": {"labels": {"numa": "yes"}, "namespaces": ["db"]},
    "annotations": {"unbacked": {"namespaces": ["db"]}},
    "events": True,
    "placementAnnotation": True,
    "nodeResourceTopology": True,
    "onRejection": "evict",
    "evictionsPerHour": 3,
    "devices": False,
    "devicesTimeout": "10s",
    "kubeletPodResources": "/var/lib/kubelet/pod-resources/kubelet.sock",
    "unsupportedRuntimeClasses": ["kata*"],
    "coexistence": {"fence": "8-15"},
}
KUBELET = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "featureGates": {"PodLevelResources": True},
    "cpuManagerPolicy": "static",
    "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
    "reservedSystemCPUs": "0-1",
    "kubeReserved": {"cpu": "500m", "memory": "1.5Gi", "pid": 1000},
    "systemReserved": {"memory": "924Mi"},
    "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%"},
    "mergeDefaultEvictionSettings": True,
    "memoryManagerPolicy": "Static",
    "reservedMemory": [{"numaNode": 0, "limits": {"memory": "2560Mi"}}],
    "topologyManagerPolicy": "restricted",
    "topologyManagerScope": "container",
    "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": True},
    "cgroupDriver": "systemd",
    "cgroupRoot": "/",
    "clusterDNS": ["10.0.0.10"],
}
"""As it stands on a node, with a key that is not about CPUs and memory."""

Schema = dict[str, Any]


def schema_of(section: str) -> Schema:
    schema = json.loads((CHART / "values.schema.json").read_text())
    members: Schema = schema["properties"]["config"]["properties"][section]
    return members


def keys(model: type[BaseModel]) -> set[str]:
    return {str(field.alias) for field in model.model_fields.values()}


@pytest.mark.parametrize("value", REFUSED)
def test_a_value_that_makes_no_sense_is_refused(value: str) -> None:
    command = [program("helm"), "template", "numalet", str(CHART), "--set", value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_the_schema_knows_the_keys_that_an_agent_knows_and_no_others() -> None:
    schema = schema_of("agent")

    assert schema["properties"].keys() == keys(AgentConfiguration)
    assert schema["additionalProperties"] is False
    assert schema["properties"]["departures"]["properties"].keys() == DEPARTURES


def test_the_schema_knows_the_keys_of_a_kubelet_that_are_read_and_lets_others_through() -> None:
    schema = schema_of("kubelet")

    assert schema["properties"].keys() == keys(KubeletConfiguration) | {"apiVersion", "kind"}
    assert schema.get("additionalProperties", True) is True


@pytest.mark.parametrize(
    ("section", "model"), [("agent", AgentConfiguration), ("kubelet", KubeletConfiguration)]
)
def test_the_schema_knows_the_same_words(section: str, model: type[BaseModel]) -> None:
    schema = schema_of(section)["properties"]
    fields = {str(f.alias): f.annotation for f in model.model_fields.values()}
    words = {key: set(get_args(t)) for key, t in fields.items() if get_origin(t) is Literal}

    assert words
    assert words == {key: set(schema[key]["enum"]) - {False} for key in words}  # False: `off`


def test_an_agent_reads_every_key_that_the_chart_takes(tmp_path: Path) -> None:
    values, path = tmp_path / "values.yaml", tmp_path / "config.yaml"
    values.write_text(yaml.safe_dump({"config": {"agent": AGENT, "kubelet": KUBELET}}))
    path.write_text(config_text(documents(templated("--values", str(values)))))

    config = load(path)

    assert keys(AgentConfiguration) == AGENT.keys()
    assert keys(KubeletConfiguration) < KUBELET.keys()
    assert "default" not in config.origins.values()
    assert [str(config.policy.reserved_cpus), str(config.policy.fence)] == ["0-1", "8-15"]
    assert "clusterDNS" in " ".join(config.warnings)


def test_a_list_or_mapping_that_is_null_is_left_out(tmp_path: Path) -> None:
    names = (
        "tolerations",
        "nodeSelector",
        "podAnnotations",
        "imagePullSecrets",
        "image.pullPolicy",
    )
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(templated("--set", ",".join(f"{name}=null" for name in names)))

    assert not complaints(rendered)
    assert "tolerations" not in pod_spec(documents(rendered.read_text()))


@pytest.mark.parametrize("value", [3, "10%", "100%"])
def test_a_roll_out_may_be_faster(value: int | str) -> None:
    (made,) = (
        d
        for d in documents(templated("--set", f"maxUnavailable={value}"))
        if d["kind"] == "DaemonSet"
    )

    assert made["spec"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"] == value
