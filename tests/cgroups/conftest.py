from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.simulation.kernel import SimulatedKernel

from .rig import Rig, real, simulated, two_nodes


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.realcgroup)])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    with simulated(tmp_path) if request.param == "simulated" else real() as ready:
        yield ready


@pytest.fixture
def kernel(tmp_path: Path) -> SimulatedKernel:
    return SimulatedKernel(two_nodes(), tmp_path)
