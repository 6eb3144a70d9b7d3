"""After a reboot of the machine the same pods have the same CPUs."""

import json
from typing import Any

import pytest

from hack.lab.topology import TOPOLOGIES

from .rig import in_guest

pytestmark = pytest.mark.vm


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("reboot")
    for _ in range(2):
        outcome = in_guest(TOPOLOGIES["2n"], f"python -m tests.vm.reboot {folder}", results=folder)
        assert outcome.status == 0, f"{outcome.stderr}\n{(folder / 'agent.log').read_text()}"
    lives: list[dict[str, Any]] = json.loads((folder / "lives.json").read_text())
    return lives


def test_the_machine_was_booted_anew(lives: list[dict[str, Any]]) -> None:
    first, second = lives
    assert first["boot"] != second["boot"]


def test_a_pod_has_the_cpus_that_it_had_and_not_those_of_a_fresh_start(
    lives: list[dict[str, Any]],
) -> None:
    first, second = lives
    assert first["decided"] != "1,5", "what a fresh start gives"
    assert second["decided"] == first["decided"]
    assert first["effective"] == second["effective"] == first["decided"]
