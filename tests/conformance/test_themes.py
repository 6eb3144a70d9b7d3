"""Every recorded answer of the kubelet, theme by theme, with the departures that design names."""

from pathlib import Path

import pytest

from tests.conformance.report import Report
from tests.conformance.scenario import read_scenarios

VECTORS = Path(__file__).parents[1] / "data" / "conformance"

THEMES: dict[str, tuple[int, dict[str, int]]] = {
    "checkpoints": (130, {"readmit": 43}),
    "config_validation": (251, {"more_than_8_nodes": 1}),
    "container_scope_pod_level": (480, {"double_allocation": 4}),
    "cpu_container_level": (580, {"double_allocation": 10}),
    "feature_gates": (50, {}),
    "init_sidecars": (480, {"double_allocation": 3, "leaked_cpus": 1}),
    "kep_examples": (250, {}),
    "memory": (380, {}),
    "odd_machines": (220, {}),
    "pod_scope": (960, {"double_allocation": 12}),
    "restore_validation": (168, {"leaked_cpus": 1}),
    "topology_policies": (360, {"double_allocation": 3}),
}
"""Theme -> scenarios, and how many of them depart from the kubelet, by name.

``readmit``: the kubelet places a running pod anew, or merges its hints anew.
``double_allocation``: it gives CPUs on uneven machines to two owners.
``leaked_cpus``: it loses a pod's pool that has no container entries.
``more_than_8_nodes``: it does not start.
"""


def test_no_theme_is_left_out() -> None:
    assert {f.name.removesuffix(".jsonl.gz") for f in VECTORS.glob("*.jsonl.gz")} == set(THEMES)


@pytest.mark.parametrize("theme", THEMES)
def test_every_answer_of_a_theme_is_the_kubelets_or_departs_by_name(theme: str) -> None:
    scenarios, departures = THEMES[theme]
    report = Report()

    report.run(read_scenarios(VECTORS / f"{theme}.jsonl.gz"))

    assert report.failed == 0, "\n".join(report.lines())
    found = report.themes[theme]
    assert found.verdicts.total() == scenarios
    assert found.departures == departures
