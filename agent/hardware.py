"""Follows CPUs and memory that come and go while the agent runs."""

from collections.abc import Callable

import structlog

from agent.core.cpuset import CPUSet
from agent.core.startup import Rules, on_machine
from agent.core.topology import NodeTopology, kubelet_view
from agent.errors import NumaletError

log = structlog.get_logger(component="hardware")

_MOST_TOLD = 3
"""So many events are named: a memory module has hundreds of blocks."""


class Hardware:
    """Knows the machine as it is now, and what of the configuration holds on it.

    Events say when to read it anew; the CPUs that are online are compared besides, since an event may
    have come before anybody listened, or cannot be heard here at all.
    """

    def __init__(
        self,
        read: Callable[[], NodeTopology],
        resolve: Callable[[NodeTopology], Rules],
        read_online: Callable[[], CPUSet],
    ) -> None:
        """Read the machine by ``read``; ``resolve`` has the configuration with which the agent started.

        All three raise `agent.errors.NumaletError`.
        """
        self._read = read
        self._resolve = resolve
        self._read_online = read_online
        self._online: CPUSet | None = None
        self._due = "the start"
        self._unreadable: tuple[str, ...] = ()
        self._misfit: tuple[str, ...] = ()
        self._fitted: Rules | None = None
        """Those of the last machine that the configuration fitted, where it does not now."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with the machine, for people."""
        return self._unreadable + self._misfit

    def look(self, rules: Rules, *told: str) -> Rules:
        """Return the rules on the machine as it is: these very ones where nothing changed.

        ``told`` are events.  A machine that cannot be read is looked at again each time.  Where the
        configuration does not fit any more, what of it can still hold does: CPUs that have gone must
        not be given to anybody, or he would run on those of others.
        """
        heard = ", ".join(told[:_MOST_TOLD]) + (", ..." if len(told) > _MOST_TOLD else "")
        self._due = heard or self._due or self._unheard(rules)
        if not self._due:
            return rules
        cause, after = self._due, f"after {self._due} the machine"
        try:
            topology = self._read()
        except NumaletError as error:
            self._unreadable = (f"{after} cannot be read: {error}; tried again in every pass",)
            return rules
        self._due, self._unreadable = "", ()
        is_changed = kubelet_view(topology) != rules.topology
        if is_changed or told:
            log.warning("hardware_changed", what=cause)
        if not is_changed:
            return rules
        fitted = self._fitted or rules
        self._misfit, self._fitted = (), None
        try:
            return self._resolve(topology)
        except NumaletError as error:
            cure = "bring the CPUs back, or change the configuration and restart numalet"
            self._misfit = (f"{after} no longer fits: {error}; nobody gets what has gone; {cure}",)
            self._fitted = fitted
            return on_machine(fitted, topology)

    def _unheard(self, rules: Rules) -> str:
        """Say which CPUs came or went, though no event told of it."""
        former = rules.topology.cpus if self._online is None else self._online
        try:
            self._online = self._read_online()
        except NumaletError:
            return ""
        if self._online == former:
            return ""
        return f"CPUs {self._online - former or 'none'} coming and {former - self._online or 'none'} going"
