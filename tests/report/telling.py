"""An `Outbound` whose time is in the test's hand."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from agent.ports import ApiAnswer, ApiServer, Snapshot
from agent.report.outbound import Outbound, OutboundSettings
from agent.report.outbox import Message, Teller
from agent.simulation.clock import SimulatedClock

from .rig import empty_snapshot

SETTINGS = OutboundSettings()


def highest(_low: float, high: float) -> float:
    return high


def ready_snapshot(taken_at_s: float = 1.0) -> Snapshot:
    return replace(empty_snapshot(), ready=True, taken_at_s=taken_at_s)


@dataclass
class Wishes:
    """A teller that says of every snapshot what the test wants."""

    messages: list[Message] = field(default_factory=list)

    def look(self, snapshot: Snapshot, now_s: float) -> Iterable[Message]:
        del snapshot, now_s
        messages, self.messages = self.messages, []
        return messages


class Telling:
    """An `Outbound` without its thread: time passes only in `run`."""

    def __init__(
        self,
        api: ApiServer,
        *tellers: Teller,
        settings: OutboundSettings = SETTINGS,
        clock: SimulatedClock | None = None,
    ) -> None:
        self.clock = clock or SimulatedClock(start_s=1_796_040_000.0)
        self.wishes = Wishes()
        self.outbound = Outbound(
            api, (self.wishes, *tellers), self.clock, settings=settings, uniform=highest
        )

    def tell(self, *messages: Message) -> None:
        self.wishes.messages += messages
        self.outbound.publish(ready_snapshot())
        self.outbound.step()

    def run(self, seconds: float = 0.0) -> None:
        """Do all that is due within so many seconds."""
        end_s = self.clock.monotonic_s() + seconds
        while True:
            wait_s = self.outbound.step()
            left_s = max(0.0, end_s - self.clock.monotonic_s())
            if wait_s > left_s:
                self.clock.advance(left_s)
                return
            self.clock.advance(wait_s)

    @property
    def outcomes(self) -> dict[tuple[str, str], int]:
        return dict(self.outbound.numbers().outcomes)


def message(
    name: str, say: Callable[[ApiServer], ApiAnswer | None], kind: str = "thing"
) -> Message:
    return Message(key=(kind, name), say=say)
