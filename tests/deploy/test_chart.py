"""What `helm install` applies is what `kubectl apply -k` does."""

import subprocess
from pathlib import Path

import pytest
import yaml

from agent import __version__
from agent.config import load
from agent.own_config import AgentConfiguration

from .tools import (
    CHART,
    DEPLOY,
    Object,
    Objects,
    by_name,
    config_text,
    documents,
    kustomized,
    output,
    pod_spec,
    program,
    templated,
)

OVERLAYS = {
    "base": (),
    "overlays/observe": ("--set", "observe=true"),
    "overlays/openshift": ("--set", "openshift=true,runtime=cri-o"),
    "overlays/service-monitor": ("--set", "serviceMonitor=true"),
    "overlays/release": ("--set", "release=true"),
    "overlays/canary": ("--set-string", r"nodeSelector.numalet\.io/canary=true"),
}
"""How the chart is asked for what an overlay gives."""
REFUSED = (
    "observe=1",
    "runtime=dockerd",
    "image.digest=latest",
    "config.agent.hostRoot=/",
    "config.agent.metricsAddress=0.0.0.0:80",
    "config.agent.onRejection=delete",
    "config.kubelet.topologyManagerPolicy=bestEffort",
    "nodeSelector.a=true",
    "privileged=true",
)


def comparable(objects: list[Object]) -> Objects:
    """Return objects without what only one of the two tools needs.

    A ConfigMap's name ends in a hash, or a checksum is among the pod's annotations; lists of
    volumes are kept in another order after a patch; the configuration is compared as it is read.
    """
    named = by_name(objects)
    named.pop(("Namespace", "numalet"), None)
    config = named["ConfigMap", "numalet-config"]
    config["metadata"]["name"] = "numalet-config"
    config["data"] = {"config.yaml": documents(config["data"]["config.yaml"])}
    template = named["DaemonSet", "numalet"]["spec"]["template"]
    annotations = template["metadata"].pop("annotations", {})
    annotations.pop("checksum/config", None)
    template["metadata"] |= {"annotations": annotations} if annotations else {}
    spec = template["spec"]
    volumes = {volume.pop("name"): volume for volume in spec["volumes"]}
    volumes["config"]["configMap"]["name"] = "numalet-config"
    spec["volumes"] = volumes
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        container.setdefault("imagePullPolicy", "IfNotPresent")  # the default for such a tag
        container["volumeMounts"] = {m["mountPath"]: m for m in container["volumeMounts"]}
    return named


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_chart_makes_the_same_objects(folder: str) -> None:
    chart = comparable(documents(templated(*OVERLAYS[folder])))

    assert chart == comparable(documents(kustomized(DEPLOY / folder)))


def test_the_chart_mounts_what_the_component_for_devices_does(tmp_path: Path) -> None:
    for folder in ("base", "components"):
        (tmp_path / folder).symlink_to(DEPLOY / folder)
    kustomization = "resources: [base]\ncomponents: [components/devices]\n"
    (tmp_path / "kustomization.yaml").write_text(kustomization)

    chart = comparable(documents(templated("--set", "devices=true")))

    assert chart == comparable(documents(kustomized(tmp_path)))


def test_every_overlay_is_compared() -> None:
    assert {Path(name).name for name in OVERLAYS} - {"base"} == {
        path.name for path in (DEPLOY / "overlays").iterdir()
    }


def test_helm_has_nothing_to_say_against_it() -> None:
    said = output("helm", "lint", "--strict", CHART)

    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


@pytest.mark.parametrize("value", REFUSED)
def test_a_value_that_makes_no_sense_is_refused(value: str) -> None:
    command = [program("helm"), "template", "numalet", str(CHART), "--set", value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_the_agent_reads_what_the_chart_writes(tmp_path: Path) -> None:
    words = ("--set", "config.kubelet.reservedSystemCPUs=0-1", "--set", "config.agent.observe=true")
    path = tmp_path / "config.yaml"
    path.write_text(config_text(documents(templated(*words))))

    config = load(path)

    assert config.observe
    assert str(config.policy.reserved_cpus) == "0-1"
    assert not config.warnings


def test_the_values_name_keys_that_an_agent_has() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    known = {field.alias for field in AgentConfiguration.model_fields.values()}

    assert set(values["config"]["agent"]) <= known


def test_another_configuration_is_rolled_out() -> None:
    def annotations(*words: str) -> object:
        objects = by_name(documents(templated(*words)))
        return objects["DaemonSet", "numalet"]["spec"]["template"]["metadata"]["annotations"]

    assert annotations() != annotations("--set", "config.agent.logLevel=debug")


def test_the_image_can_be_pinned_by_its_digest() -> None:
    digest = f"sha256:{'0' * 64}"
    words = ("--set", f"image.repository=registry.example/numalet,image.digest={digest}")

    (agent,) = pod_spec(documents(templated(*words)))["containers"]

    assert agent["image"] == f"registry.example/numalet@{digest}"


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
