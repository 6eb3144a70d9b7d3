from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.ports import ApiAnswer, ApiServer
from agent.report.outbox import Message, Outbox


def unsaid(_api: ApiServer) -> ApiAnswer | None:
    raise AssertionError("nobody says anything here")


def named(name: str, due_s: float = 0.0, kind: str = "thing") -> Message:
    return Message(key=(kind, name), say=unsaid, due_s=due_s)


def at_once(_message: Message) -> float:
    return 0.0


def all_of(outbox: Outbox, now_s: float = 99.0) -> list[Message]:
    """Take all that is due."""
    taken = []
    while (pending := outbox.take(now_s, at_once)) is not None:
        taken.append(pending.message)
    return taken


@given(st.lists(st.text(max_size=1)), st.integers(1, 5))
def test_it_holds_one_message_a_key_and_never_more_than_its_bound(
    names: Sequence[str], most: int
) -> None:
    outbox, newest, dropped = Outbox(most), {}, 0
    for name in names:
        newest[name] = named(name)
        dropped += outbox.put(newest[name]) is not None
        assert len(outbox) <= most

    taken = all_of(outbox)
    assert len(outbox) == 0
    assert len({message.key for message in taken}) == len(taken)
    assert all(message is newest[message.key[1]] for message in taken)
    assert len(taken) + dropped >= len(newest)


@given(st.lists(st.floats(0, 10), min_size=1))
def test_messages_come_in_the_order_in_which_they_are_due_and_were_put(
    due: Sequence[float],
) -> None:
    outbox = Outbox(len(due))
    for number, due_s in enumerate(due):
        outbox.put(named(str(number), due_s))

    taken = [int(message.key[1]) for message in all_of(outbox)]
    assert taken == sorted(range(len(due)), key=lambda number: due[number])


def test_the_oldest_message_makes_room() -> None:
    outbox = Outbox(2)
    for name in ("a", "b"):
        outbox.put(named(name))
    dropped = outbox.put(named("c"))
    assert dropped is not None
    assert dropped.message.key == ("thing", "a")


def test_it_is_the_kind_with_most_that_makes_room() -> None:
    outbox = Outbox(3)
    outbox.put(named("only", kind="topology"))
    dropped = [outbox.put(named(str(number))) for number in range(5)]
    assert [one.message.key[1] for one in dropped if one is not None] == ["0", "1", "2"]
    assert [message.kind for message in all_of(outbox)] == ["topology", "thing", "thing"]


def test_kinds_take_turns_whoever_came_first() -> None:
    outbox = Outbox(9)
    for name in "abc":
        outbox.put(named(name))
    outbox.put(named("x", due_s=7.0, kind="other"))
    outbox.put(named("y", due_s=8.0, kind="other"))
    assert [message.key[1] for message in all_of(outbox)] == ["a", "x", "b", "y", "c"]


def test_a_newer_message_waits_as_long_as_the_one_that_it_replaces() -> None:
    outbox = Outbox(2)
    outbox.put(named("a"))
    pending = outbox.take(0.0, at_once)
    assert pending is not None
    outbox.put_back(pending, 30.0)
    outbox.put(named("a"))
    assert outbox.next_due_s(at_once) == 30.0
    assert all_of(outbox, now_s=29.0) == []


def test_a_kind_that_must_wait_lets_the_others_pass() -> None:
    outbox = Outbox(2)
    outbox.put(named("a"))
    outbox.put(named("b", kind="other"))

    def not_before(message: Message) -> float:
        return 100.0 if message.kind == "thing" else 0.0

    pending = outbox.take(0.0, not_before)
    assert pending is not None
    assert pending.kind == "other"
    assert outbox.take(99.0, not_before) is None
    assert outbox.next_due_s(not_before) == 100.0
