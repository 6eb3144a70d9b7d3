"""Guests take minutes, and the lab installs packages: they boot only where asked for, by marker."""

import pytest

from hack.lab import image
from hack.lab.errors import UnavailableError

from .rig import not_available

_TIMEOUT_S = 900  # the first boot on a machine builds the images


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = "vm" in str(config.getoption("markexpr"))
    for item in items:
        if item.get_closest_marker("vm") is None:
            continue
        item.add_marker(pytest.mark.timeout(_TIMEOUT_S))
        if not asked:
            item.add_marker(pytest.mark.skip(reason="boots guests: run 'make vm-test'"))


@pytest.fixture(scope="session")
def lab() -> None:
    """Skip where this machine has no lab, and cannot have one."""
    try:
        image.prepare("6.1")
    except UnavailableError as reason:
        not_available(reason)
