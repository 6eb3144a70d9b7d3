"""Wires the watch for other CPU managers: who is asked for them, and who is told."""

import socket
from collections.abc import Callable

from agent.config import AgentConfig
from agent.core.findings import Finding
from agent.place import KUBERNETES, Place, RunOptions, other_managers, why_only_observing
from agent.ports import Clock
from agent.report.events import OTHER_CPU_MANAGER, node_warning
from agent.report.outbound import Outbound
from agent.rival_watch import RivalWatch
from agent.sources.api_access import load_client
from agent.sources.api_requests import ApiRequests
from agent.sources.configz import Configz


def rival_watch(options: RunOptions, place: Place, config: AgentConfig, clock: Clock) -> RivalWatch:
    """Find others by what the node shows, and in a cluster also by what its kubelet says."""
    configz = None
    if place.mode == KUBERNETES:
        api = ApiRequests(load_client(options.kubeconfig), clock)
        configz = Configz(api, options.node_name or socket.gethostname(), clock)
    return RivalWatch(
        lambda: other_managers(place, config, None if configz is None else configz.answer),
        lambda found: why_only_observing(found, config),
        before_look=(lambda: None) if configz is None else configz.ask,
    )


def telling_of_others(
    options: RunOptions, config: AgentConfig, clock: Clock, outbound: Outbound | None
) -> Callable[[Finding], None]:
    """Return who tells the API server of others, though they keep the agent from all else.

    One that is to write nothing at all tells of nobody.
    """
    node_name = options.node_name or socket.gethostname()
    is_silent = options.observe or config.observe or not config.telling.events

    def tell(other: Finding) -> None:
        if outbound is not None and not is_silent:
            does = f"{other.sentence}; coexistence is {config.coexistence}"
            at_s = clock.now_s()
            outbound.say(node_warning(OTHER_CPU_MANAGER, other.subject, does, at_s, node_name))

    return tell
