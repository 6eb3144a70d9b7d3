"""The one queue on which everybody puts events, as the one who handles them takes them off."""

import contextlib
import queue
from collections.abc import Callable

from agent.ports import Event, Tick


def next_events(
    events: "queue.SimpleQueue[Event]", due_s: float, on_idle: Callable[[], None]
) -> list[Event]:
    """Return all events that wait, after waiting for one, with a `Tick` if that is due by then.

    It is due in ``due_s`` seconds.  ``on_idle`` is called before anything is waited for.
    """
    waiting: list[Event] = [] if due_s > 0 else [Tick()]
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.append(events.get_nowait())
    if waiting:
        return waiting
    on_idle()
    try:
        return [events.get(timeout=due_s)]
    except queue.Empty:
        return [Tick()]
