"""Where tests put their many small files: in memory, where the machine has a place for that."""

import os
from tempfile import TemporaryDirectory

_MEMORY = "/dev/shm"
PLACE = _MEMORY if os.access(_MEMORY, os.W_OK) else None
"""A folder for `tempfile`; None is its own choice."""


def scratch_folder() -> TemporaryDirectory[str]:
    """Return a new folder with a short name, which is removed at the end of a ``with``."""
    return TemporaryDirectory(prefix="n", dir=PLACE)
