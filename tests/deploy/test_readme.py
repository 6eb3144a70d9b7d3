"""What deploy/README.md says is what there is: names, kustomizations to copy, the table of mounts."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .tools import (
    COMPONENTS,
    DEPLOY,
    OVERLAYS,
    PROJECT,
    Object,
    by_name,
    composed,
    config_text,
    containers,
    documents,
    kustomized,
    pod_spec,
)

README = (DEPLOY / "README.md").read_text()
KUSTOMIZATIONS = dict(
    re.findall(
        r"^```yaml\n# (\S+)/kustomization\.yaml\n(.*?)^```$", README, re.DOTALL | re.MULTILINE
    )
)
"""The files that it prints, by the name of their folder."""


def written(tmp_path: Path, name: str, text: str) -> Path:
    """Return a cluster's folder beside the project, with a configuration of its own."""
    (tmp_path / "numalet").symlink_to(PROJECT)
    folder = tmp_path / name
    folder.mkdir()
    (folder / "kustomization.yaml").write_text(text)
    config = (DEPLOY / "base/config.yaml").read_text()
    (folder / "config.yaml").write_text(f"{config}logLevel: debug\n")
    return folder


def own_cluster(tmp_path: Path, before: str = "", after: str = "") -> list[Object]:
    text = KUSTOMIZATIONS["my-cluster"]
    assert before in text
    return documents(kustomized(written(tmp_path, "my-cluster", text.replace(before, after, 1))))


def table_of_features() -> Iterator[Mapping[str, str]]:
    section = README.partition("## What each feature needs\n")[2]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    for row in rows[2:]:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        yield dict(zip(("feature", "mount", "namespace", "capability"), cells, strict=True))


def paths_in(cell: str) -> set[str]:
    return set(re.findall(r"`(/[^`]+)`", cell))


def test_it_names_what_is_there() -> None:
    pattern = r"\b(?:base|overlays|components|chart|examples)/[a-z0-9/.-]*[a-z0-9]"
    named = set(re.findall(pattern, README))

    assert named
    assert not {name for name in named if not (DEPLOY / name).exists()}
    assert all(f"`{name}`" in README for name in OVERLAYS)


@pytest.mark.parametrize("name", KUSTOMIZATIONS)
def test_each_kustomization_to_copy_makes_the_objects_of_the_base(
    name: str, tmp_path: Path
) -> None:
    made = by_name(documents(kustomized(written(tmp_path, name, KUSTOMIZATIONS[name]))))

    assert made.keys() == by_name(documents(kustomized(DEPLOY / "base"))).keys()
    (agent,) = pod_spec(made.values())["containers"]
    assert agent["args"][-1] == "--observe"
    assert re.fullmatch(r"(YOUR-REGISTRY|localhost)/numalet:[0-9.]+", agent["image"])


def test_a_cluster_s_own_configuration_takes_the_place_of_the_base_s(tmp_path: Path) -> None:
    objects = own_cluster(tmp_path)
    maps = [item["metadata"] for item in objects if item["kind"] == "ConfigMap"]
    used = [v["configMap"] for v in pod_spec(objects)["volumes"] if "configMap" in v]

    assert config_text(objects) == (tmp_path / "my-cluster/config.yaml").read_text()
    assert [(one["name"], one["namespace"]) for one in maps] == [(used[0]["name"], "numalet")]


def test_backing_out_by_one_s_own_kustomization_keeps_image_runtime_and_nodes(
    tmp_path: Path,
) -> None:
    before = "- ../numalet/deploy/components/observe\n"
    after = "".join(
        f"- ../numalet/deploy/components/{name}\n" for name in ("canary", "k3s", "release")
    )

    objects = own_cluster(tmp_path, before, after)

    spec, (release, agent) = pod_spec(objects), containers(objects)
    assert (release["args"][0], agent["args"][-1]) == ("release", "--observe")
    assert {c["image"] for c in (release, agent)} == {"YOUR-REGISTRY/numalet:0.1.0"}
    assert spec["nodeSelector"]["numalet.io/canary"] == "true"
    assert "/run/k3s/containerd" in str(spec["volumes"])


def test_the_table_has_every_mount_of_the_host_and_no_other(tmp_path: Path) -> None:
    mounts: dict[str, bool] = {}
    for name in COMPONENTS:
        (folder := tmp_path / name).mkdir()
        (agent,) = pod_spec(documents(composed(folder, name)))["containers"]
        mounts |= {m["mountPath"]: not m.get("readOnly") for m in agent["volumeMounts"]}
    below = {p.removeprefix("/host"): w for p, w in mounts.items() if p.startswith("/host/")}

    rows = [(paths_in(row["mount"]), "written" in row["mount"]) for row in table_of_features()]

    assert {path: is_written for paths, is_written in rows for path in paths} == below


def test_the_table_has_every_capability_that_is_given() -> None:
    (agent,) = pod_spec(documents(kustomized(DEPLOY / "base")))["containers"]
    cells = [row["capability"] for row in table_of_features()]
    said = " ".join(cell for cell in cells if not cell.startswith("not given"))
    given = agent["securityContext"]["capabilities"]

    assert set(re.findall(r"\b[A-Z_]{4,}\b", said)) == set(given.get("add", ()))
    assert given["drop"] == ["ALL"]


def test_the_table_is_right_about_namespaces() -> None:
    spec = pod_spec(documents(kustomized(DEPLOY / "base")))
    said = " ".join(row["namespace"] for row in table_of_features())

    assert ("not the host's PIDs" in said) is not spec.get("hostPID", False)
    assert ("its own network namespace" in said) is not spec.get("hostNetwork", False)


def test_the_table_has_the_port_that_is_served() -> None:
    (agent,) = pod_spec(documents(kustomized(DEPLOY / "base")))["containers"]
    ports = {int(p) for row in table_of_features() for p in re.findall(r"port (\d+)", str(row))}

    assert ports == {port["containerPort"] for port in agent["ports"]}
