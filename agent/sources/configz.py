"""What the node's kubelet is configured to do, as it says itself: its ``/configz``.

It is asked through the API server, for whose proxy the right ``get`` on ``nodes/proxy`` is needed.
Without it nobody is asked again for hours: the kubelet's state files say the same where they can be read.
"""

from collections.abc import Mapping
from http import HTTPStatus
from math import inf
from urllib.parse import quote

import structlog

from agent.core.node_facts import KubeletFacts
from agent.errors import KubernetesError
from agent.ports import ApiAnswer, ApiServer, Clock

log = structlog.get_logger(component="configz")

AGAIN_S = 600.0
"""A kubelet has another configuration only after a restart, and each question costs it one of ours."""
REFUSED_S = 6 * 3600.0
_REFUSALS = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND)


class Configz:
    """Asks for the policies of a node's kubelet; ``answer`` is what it said last, None if it did not."""

    def __init__(self, api: ApiServer, node_name: str, clock: Clock) -> None:
        self._api = api
        self._path = f"/api/v1/nodes/{quote(node_name)}/proxy/configz"
        self._clock = clock
        self._ask_at_s = -inf
        self._problem = ""
        self.answer: KubeletFacts | None = None

    def ask(self) -> None:
        """Ask, if it is time to; takes as long as the API server does."""
        now_s = self._clock.monotonic_s()
        if now_s < self._ask_at_s:
            return
        self._ask_at_s = now_s + AGAIN_S
        try:
            answer = self._api.ask("GET", self._path)
        except KubernetesError as error:
            self.answer = None
            self._note(str(error))
            return
        self.answer = _policies(answer)
        if answer.code in _REFUSALS:
            self._ask_at_s = now_s + REFUSED_S
        text = answer.body if isinstance(answer.body, str) else answer.body.get("message", "")
        self._note("" if self.answer is not None else f"{answer.code}: {str(text)[:200]}")

    def _note(self, problem: str) -> None:
        """Log once that the kubelet does not answer, and why."""
        if problem and not self._problem:
            log.info("configz_not_told", what=problem)
        self._problem = problem


def _policies(answer: ApiAnswer) -> KubeletFacts | None:
    if answer.code != HTTPStatus.OK or not isinstance(answer.body, Mapping):
        return None
    config = answer.body.get("kubeletconfig")
    if not isinstance(config, Mapping):
        return None
    # Its defaults are in it, so that a policy which is missing is one that this kubelet does not have.
    cpu, memory = (config.get(key) for key in ("cpuManagerPolicy", "memoryManagerPolicy"))
    return KubeletFacts(
        folder="",
        cpu_policy=str(cpu or "none"),
        memory_policy=str(memory or "None"),
        said_by="its configz",
    )
