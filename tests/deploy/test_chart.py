"""What `helm install` applies is what `kubectl apply -k` does."""

from itertools import combinations
from pathlib import Path

import pytest
import yaml

from agent import __version__

from .tools import (
    CHART,
    COMPONENTS,
    DEPLOY,
    Object,
    Objects,
    as_json,
    by_name,
    composed,
    documents,
    kustomized,
    output,
    pod_spec,
    templated,
)

OVERLAYS = {
    "base": (),
    "overlays/observe": ("--set", "observe=true"),
    "overlays/openshift": ("--set", "openshift=true,runtime=cri-o"),
    "overlays/service-monitor": ("--set", "serviceMonitor=true"),
    "overlays/release": ("--set", "release=true"),
    "overlays/canary": ("--set", "canary=true"),
}
"""How the chart is asked for what an overlay gives."""
VALUES = {
    "canary": "canary=true",
    "configz": "configz=true",
    "cri-o": "runtime=cri-o",
    "devices": "devices=true",
    "docker": "runtime=docker",
    "evict": "config.agent.onRejection=evict",
    "k3s": "runtime=k3s",
    "node-resource-topology": "config.agent.nodeResourceTopology=true",
    "observe": "observe=true",
    "openshift": "openshift=true",
    "placement-annotation": "config.agent.placementAnnotation=true",
    "release": "release=true",
    "service-monitor": "serviceMonitor=true",
    "shim-sandboxes": "shimSandboxes=true",
}
"""How the chart is asked for what a component gives."""
RUNTIMES = ("cri-o", "docker", "k3s", "shim-sandboxes")
EITHER = (*map(set, combinations(RUNTIMES, 2)), {"observe", "release"})
"""One runtime; and whoever releases observes by that, which kustomize says twice."""
TOGETHER = [
    *combinations(VALUES, 1),
    *combinations(VALUES, 2),
    tuple(name for name in VALUES if name not in {*RUNTIMES[1:], "observe"}),
]


def comparable(objects: list[Object]) -> Objects:
    """Return objects without what only one of the two tools needs.

    A ConfigMap's name ends in a hash, or a checksum is among the pod's annotations; lists of
    volumes and rules are in another order after a patch; the configuration is compared as it is read.
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
    named["ClusterRole", "numalet"]["rules"].sort(key=as_json)
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        container.setdefault("imagePullPolicy", "IfNotPresent")  # the default for such a tag
        container["volumeMounts"] = {m["mountPath"]: m for m in container["volumeMounts"]}
    return named


@pytest.mark.parametrize("folder", OVERLAYS)
def test_the_chart_makes_the_same_objects(folder: str) -> None:
    chart = comparable(documents(templated(*OVERLAYS[folder])))

    assert chart == comparable(documents(kustomized(DEPLOY / folder)))


@pytest.mark.parametrize(
    "components",
    [them for them in TOGETHER if not any(pair <= set(them) for pair in EITHER)],
    ids="+".join,
)
def test_components_and_values_mean_the_same_together(
    components: tuple[str, ...], tmp_path: Path
) -> None:
    words = ",".join(VALUES[name] for name in components)

    chart = comparable(documents(templated("--set", words)))
    kustomize = comparable(documents(composed(tmp_path, *components)))

    for objects in (chart, kustomize):  # a component gives the right only
        del objects["ConfigMap", "numalet-config"]["data"]
    assert chart == kustomize


def test_every_component_is_compared() -> None:
    assert sorted(VALUES) == COMPONENTS


def test_every_overlay_is_compared() -> None:
    assert {Path(name).name for name in OVERLAYS} - {"base"} == {
        path.name for path in (DEPLOY / "overlays").iterdir()
    }


def test_helm_has_nothing_to_say_against_it() -> None:
    said = output("helm", "lint", "--strict", CHART)

    assert "0 chart(s) failed" in said
    assert "[WARNING]" not in said


@pytest.mark.parametrize(
    ("words", "says", "suggests"),
    [
        ("observe=false", "enforces.", "--reset-then-reuse-values --set release=true"),
        ("observe=true", "only observes.", "--reset-then-reuse-values --set release=true"),
        ("release=true", "gives back what it has overwritten", "helm uninstall mine -n there"),
    ],
)
def test_the_notes_say_what_it_does_and_what_comes_next(
    words: str, says: str, suggests: str
) -> None:
    options = ("--dry-run=client", "--namespace", "there", "--set", words)
    notes = output("helm", "install", "mine", CHART, *options).partition("NOTES:\n")[2]

    assert says in notes.partition("\n\n")[0]
    assert suggests in notes
    assert ("release=true" in notes) is not (words == "release=true")


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
