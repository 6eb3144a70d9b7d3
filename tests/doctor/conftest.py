from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.node import procfs
from tests.scratch import scratch_folder

from .made_up import MadeUpNode


@pytest.fixture
def node() -> Iterator[MadeUpNode]:
    """Yield a healthy node, and look at this machine's own processes again at the end."""
    with scratch_folder() as folder:
        made_up = MadeUpNode(Path(folder).resolve())
        made_up.build()
        yield made_up
    procfs.use_proc_root(Path("/proc"))
