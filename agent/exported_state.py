"""The kubelet's two state files in numalet's own folder, for the tools that read them."""

from pathlib import Path

import structlog

from agent.core.startup import Rules
from agent.core.state import NodeState
from agent.errors import StateFileError
from agent.node import kubelet_state

log = structlog.get_logger(component="exported_state")


class KubeletStateFiles:
    """Keeps the kubelet's two state files up to date, for other tools."""

    def __init__(self, folder: Path, rules: Rules) -> None:
        self._folder = folder
        self._rules = rules
        self._written: NodeState | None = None

    def keep(self, state: NodeState) -> None:
        """Write both files if the state is another one; a failure is logged, and tried again."""
        if state is self._written:
            return
        files = kubelet_state.render(self._rules, state)
        try:
            if not self._say(files):
                kubelet_state.write(self._folder, files)
        except StateFileError as error:
            log.warning("kubelet_state_files", what=str(error))
        else:
            self._written = state

    def _say(self, files: dict[str, str]) -> bool:
        try:
            return kubelet_state.read(self._folder) == tuple(files.values())
        except StateFileError:
            return False
