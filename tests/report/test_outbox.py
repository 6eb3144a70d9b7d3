from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent.ports import ApiAnswer, ApiServer
from agent.report.outbox import Message, Outbox


def unsaid(_api: ApiServer) -> ApiAnswer | None:
    raise AssertionError("nobody says anything here")


def named(name: str, due_s: float = 0.0) -> Message:
    return Message(key=("thing", name), say=unsaid, due_s=due_s)


@given(st.lists(st.text(max_size=1)), st.integers(1, 5))
def test_it_holds_one_message_a_key_and_never_more_than_its_bound(
    names: Sequence[str], most: int
) -> None:
    outbox, newest, dropped = Outbox(most), {}, 0
    for name in names:
        newest[name] = named(name)
        dropped += outbox.put(newest[name]) is not None
        assert len(outbox) <= most

    taken = [outbox.take({}).message for _ in range(len(outbox))]
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

    taken = [int(outbox.take({}).message.key[1]) for _ in due]
    assert taken == sorted(range(len(due)), key=lambda number: due[number])


def test_the_oldest_message_makes_room() -> None:
    outbox = Outbox(2)
    for name in ("a", "b"):
        outbox.put(named(name))
    dropped = outbox.put(named("c"))
    assert dropped is not None
    assert dropped.message.key == ("thing", "a")


def test_a_newer_message_waits_as_long_as_the_one_that_it_replaces() -> None:
    outbox = Outbox(2)
    outbox.put(named("a"))
    outbox.put_back(outbox.take({}), 30.0)
    outbox.put(named("a"))
    assert outbox.next_due_s({}) == 30.0


def test_a_paused_kind_lets_the_others_pass() -> None:
    outbox = Outbox(2)
    outbox.put(named("a"))
    outbox.put(Message(key=("other", "b"), say=unsaid))
    paused = {"thing": 100.0}
    assert outbox.take(paused).kind == "other"
    assert outbox.next_due_s(paused) == 100.0
