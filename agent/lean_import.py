"""Imports without what they would bring along: a daemon keeps it in memory for ever.

Of pyroute2 the agent needs one socket, of the Kubernetes client one class: the ``__init__`` of each
would import all that the package has, another 8 MiB.
"""

import gc
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def without_init(*packages: str) -> Iterator[None]:
    """Let modules of these packages be imported without what the packages' ``__init__`` does.

    A package comes after the one that it is in.  One that has been imported before stays as it is,
    and one that is imported afterwards is whole.  Raises `ModuleNotFoundError`.
    """
    hollow = {}
    try:
        for name in packages:
            if name not in sys.modules:
                hollow[name] = sys.modules[name] = _without_content(name)
        yield
    finally:
        for name in hollow:
            sys.modules.pop(name, None)


@contextmanager
def hidden(package: str) -> Iterator[None]:
    """Let whoever can do without a package find that it is not installed."""
    if package in sys.modules:
        yield
        return
    sys.modules[package] = None  # type: ignore[assignment] # so the import system documents it
    try:
        yield
    finally:
        del sys.modules[package]


@contextmanager
def uncollected() -> Iterator[None]:
    """Let modules be imported while nobody looks for garbage, and never look for any among them.

    That would take a sixth of the time, and find a thousand of 100000 objects; they stay.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if before:
            gc.enable()


def _without_content(name: str) -> ModuleType:
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return importlib.util.module_from_spec(spec)
