"""The examples that are for a cluster; the others are run by the tests of the command line."""

import json
from pathlib import Path

import pytest
import yaml

from agent import __version__
from agent.report.placement import PLACEMENT

from .tools import DEPLOY, Object, base_files, complaints, output, pod_spec

READER = DEPLOY / "examples/reads-its-placement.yaml"
MACHINE = DEPLOY / "examples/machine-2s-16c.yaml"
PRE_PULL = DEPLOY / "examples/pre-pull.yaml"


def read(path: Path) -> Object:
    found: Object = yaml.safe_load(path.read_text())
    return found


@pytest.mark.parametrize("path", [READER, PRE_PULL], ids=lambda path: path.stem)
def test_it_is_valid_for_kubernetes(path: Path) -> None:
    assert not complaints(path)


def test_a_pod_reads_its_placement_by_a_file_and_not_by_a_variable() -> None:
    spec = read(READER)["spec"]
    (container,), (volume,) = spec["containers"], spec["volumes"]
    (item,), (mount,) = volume["downwardAPI"]["items"], container["volumeMounts"]

    assert item["fieldRef"] == {"fieldPath": f"metadata.annotations['{PLACEMENT}']"}
    assert "env" not in container
    assert mount["name"] == volume["name"]
    assert "subPath" not in mount
    assert f"{mount['mountPath']}/{item['path']}" in container["command"][-1]


def test_the_pod_that_reads_its_placement_gets_cpus_of_its_own() -> None:
    planned = output("numalet", "plan", "--simulate", MACHINE, "-f", READER, "-o", "json")

    (pod,) = json.loads(planned)["pods"]

    assert [c["verdict"] for c in pod["containers"]] == ["exclusive"]


def test_pulling_before_a_roll_out_goes_wherever_the_agents_are() -> None:
    spec, agents = read(PRE_PULL)["spec"]["template"]["spec"], pod_spec(base_files())

    assert spec["containers"][0]["image"] == f"numalet:{__version__}"
    assert (spec["nodeSelector"], spec["tolerations"]) == (
        agents["nodeSelector"],
        agents["tolerations"],
    )
