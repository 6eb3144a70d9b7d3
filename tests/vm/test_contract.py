"""The contract of `Cgroups` holds on real kernels exactly as on the simulated one."""

from concurrent.futures import Future
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hack.lab.kernel import KERNELS
from hack.lab.topology import TOPOLOGIES

from .rig import Outcome, in_guest, side_by_side

pytestmark = pytest.mark.vm

COMMAND = """
set -e
results=%s
cd /sys/fs/cgroup
mkdir box
sleep 1000 & echo $! >box/cgroup.procs
setpriv --bounding-set=-sys_nice sh -c 'echo +cpuset >cgroup.subtree_control' 2>$results/refusal ||
  touch $results/refused
kill $!; wait || true
rmdir box
cd - >/dev/null
echo -cpuset >/sys/fs/cgroup/cgroup.subtree_control
export NUMALET_TEST_HOTPLUG=1 PYTEST_ADDOPTS="-p no:cacheprovider --junitxml=$results/contract.xml"
hack/real-test
cat /sys/fs/cgroup/cgroup.subtree_control >$results/left
ls -d /sys/fs/cgroup/*/ >>$results/left 2>/dev/null || true
"""
MEASURED = (
    "a write to cpuset.cpus", "a write to cpu.max", "a busy program with half a CPU as quota",
    "a busy program without quota", "memory of node 0", "memory of node 1", "from node 1 to 0",
)  # fmt: skip


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[tuple[Outcome, Path]]]:
    def visit(kernel: str, folder: Path) -> tuple[Outcome, Path]:
        command = COMMAND % folder
        return in_guest(TOPOLOGIES["2n"], command, kernel=kernel, results=folder), folder

    return side_by_side(visit, KERNELS, tmp_path_factory)


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_contract_suite_passes_on_a_real_kernel(
    kernel: str, reports: dict[str, Future[tuple[Outcome, Path]]]
) -> None:
    outcome, folder = reports[kernel].result()
    report = folder / "contract.xml"

    assert report.exists(), outcome.stderr
    suite = ET.parse(report).getroot()[0]
    tests, failures, errors, skipped = (
        int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")
    )
    assert (failures, errors) == (0, 0), outcome.stdout
    assert (tests > 100, skipped) == (True, 0)
    assert outcome.status == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_real_test_prints_its_numbers_and_leaves_nothing_behind(
    kernel: str, reports: dict[str, Future[tuple[Outcome, Path]]]
) -> None:
    outcome, folder = reports[kernel].result()

    lines = outcome.stdout.splitlines()
    assert [what for what in MEASURED if not any(what in line for line in lines)] == []
    assert (folder / "left").read_text().split() == []


@pytest.mark.parametrize(("kernel", "refuses"), [("6.1", True), ("6.12", False)])
def test_linux_6_1_lets_nobody_enable_cpuset_above_who_may_do_more(
    kernel: str, reports: dict[str, Future[tuple[Outcome, Path]]], *, refuses: bool
) -> None:
    """Which is why the service has CAP_SYS_NICE."""
    _, folder = reports[kernel].result()

    assert (folder / "refused").exists() is refuses, (folder / "refusal").read_text()
