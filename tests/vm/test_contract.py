"""The contract of `Cgroups` holds on real kernels exactly as on the simulated one."""

from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from hack.lab.kernel import KERNELS
from hack.lab.topology import TOPOLOGIES

from .rig import in_guest

pytestmark = pytest.mark.vm

PLACE = "/sys/fs/cgroup/numalet-tests"
COMMAND = f"""
set -e
echo '+cpuset +cpu +memory' >/sys/fs/cgroup/cgroup.subtree_control
! grep -qw hugetlb /sys/fs/cgroup/cgroup.controllers || echo +hugetlb >/sys/fs/cgroup/cgroup.subtree_control
mkdir {PLACE}
export NUMALET_TEST_CGROUP={PLACE} NUMALET_TEST_HOTPLUG=1
python -m pytest -q -p no:cacheprovider -m realcgroup --junitxml=%s tests/cgroups
"""


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_contract_suite_passes_on_a_real_kernel(kernel: str, tmp_path: Path) -> None:
    report = tmp_path / "contract.xml"

    outcome = in_guest(TOPOLOGIES["2n"], COMMAND % report, kernel=kernel, results=tmp_path)

    assert report.exists(), outcome.stderr
    suite = ET.parse(report).getroot()[0]
    tests, failures, errors, skipped = (
        int(suite.attrib[key]) for key in ("tests", "failures", "errors", "skipped")
    )
    assert (failures, errors) == (0, 0), outcome.stdout
    assert tests - skipped > 100
    assert outcome.status == 0
