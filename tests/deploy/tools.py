"""The programs that read what is in ``deploy/``: kubectl, helm, kubernetes-validate, hadolint.

`make kustomize` installs them beside the interpreter; a test that misses one is skipped.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[2]
DEPLOY = PROJECT / "deploy"
CHART = DEPLOY / "chart/numalet"
OVERLAYS = sorted(path.name for path in (DEPLOY / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir())
KUBERNETES = "1.36"
NO_SCHEMA = ("SecurityContextConstraints", "ServiceMonitor")
"""Kinds of other projects, for which kubernetes-validate has none."""

Object = dict[str, Any]
Objects = dict[tuple[str, str], Object]


def program(name: str) -> str:
    """Return where a program is; skip the test where there is none."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed: 'make kustomize' does that, and runs these tests")
    return found


def output(name: str, *words: str | Path, stdin: str | None = None) -> str:
    """Run a program and return what it prints; fail with what it complained about."""
    done = subprocess.run(
        [program(name), *words], input=stdin, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{name}: {done.stdout}\n{done.stderr}"
    return done.stdout


def kustomized(folder: Path) -> str:
    """Return what `kubectl apply -k` would apply."""
    return output("kubectl", "kustomize", folder)


def composed(folder: Path, *components: str) -> str:
    """Return what a cluster's own kustomization makes of the base and these components."""
    (folder / "deploy").symlink_to(DEPLOY)
    kustomization = {
        "resources": ["deploy/base"],
        "components": [f"deploy/components/{name}" for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return kustomized(folder)


def complaints(path: Path) -> list[str]:
    """Return what Kubernetes' own schemas have against the objects in a file.

    That there is none for a kind of another project is no complaint.
    """
    said = output("kubernetes-validate", "--strict", "-k", KUBERNETES, path).splitlines()
    return [
        line
        for line in said
        if not line.startswith("INFO") and not any(kind in line for kind in NO_SCHEMA)
    ]


def templated(*words: str) -> str:
    """Return what `helm install` would apply."""
    return output("helm", "template", "numalet", CHART, "--namespace", "numalet", *words)


def documents(text: str) -> list[Object]:
    return [document for document in yaml.safe_load_all(text) if document]


def by_name(objects: Iterable[Object]) -> Objects:
    """Return objects by kind and name; a ConfigMap's name without the hash that kustomize adds."""
    named = {}
    for item in objects:
        name = item["metadata"]["name"]
        if item["kind"] == "ConfigMap":
            name = "numalet-config" if name.startswith("numalet-config-") else name
        named[item["kind"], name] = item
    return named


def daemon_set(objects: Iterable[Object]) -> Object:
    return by_name(objects)["DaemonSet", "numalet"]


def pod_spec(objects: Iterable[Object]) -> Object:
    spec: Object = daemon_set(objects)["spec"]["template"]["spec"]
    return spec


def containers(objects: Iterable[Object]) -> list[Object]:
    """Return all containers of the pod, those that come first included."""
    spec = pod_spec(objects)
    return [*spec.get("initContainers", ()), *spec["containers"]]


def config_text(objects: Iterable[Object]) -> str:
    text = by_name(objects)["ConfigMap", "numalet-config"]["data"]["config.yaml"]
    assert isinstance(text, str)
    return text


def base_files() -> list[Object]:
    """Return the objects of the base as they are written, for what needs no kustomize."""
    names = yaml.safe_load((DEPLOY / "base/kustomization.yaml").read_text())["resources"]
    return [d for name in names for d in documents((DEPLOY / "base" / name).read_text())]


def as_json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
