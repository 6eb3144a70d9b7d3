"""Guests take minutes, and the lab installs packages: they boot only where asked for, by marker."""

import fcntl
from collections.abc import Iterator

import pytest

from hack.lab import image
from hack.lab.errors import UnavailableError

from .rig import not_available

_TIMEOUT_S = 1200  # the first boot on a machine builds the images, and who hurries waits for others


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked = "vm" in str(config.getoption("markexpr"))
    for item in items:
        if item.get_closest_marker("vm") is None:
            continue
        item.add_marker(pytest.mark.timeout(_TIMEOUT_S))
        if not asked:
            item.add_marker(pytest.mark.skip(reason="boots guests: run 'make vm-test'"))
    # Who needs the machine alone comes last, or others would wait for him.
    items.sort(key=lambda item: item.get_closest_marker("hurried") is not None)


@pytest.fixture(scope="module", autouse=True)
def machine(request: pytest.FixtureRequest) -> Iterator[None]:
    """Share this machine with the guests of other workers, or have it alone where time matters."""
    if request.node.get_closest_marker("vm") is None:
        yield
        return
    is_hurried = request.node.get_closest_marker("hurried") is not None
    folder = image.cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "guests").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX if is_hurried else fcntl.LOCK_SH)
        yield


@pytest.fixture(scope="session")
def lab() -> None:
    """Skip where this machine has no lab, and cannot have one."""
    try:
        image.prepare("6.1")
    except UnavailableError as reason:
        not_available(reason)
