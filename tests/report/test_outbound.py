import threading
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from agent.errors import KubernetesError
from agent.ports import ApiAnswer, ApiServer
from agent.report.outbound import Outbound, OutboundNumbers, OutboundSettings
from agent.report.outbox import Message, NotNow
from agent.simulation.clock import SimulatedClock

from .api_model import BUDGET, NO_SUCH_PAGE, OVERLOADED, ApiModel, SilentApi, forbidden, status
from .telling import Telling, Wishes, message, ready_snapshot

FINE = ApiAnswer(code=201, body={})


class Script:
    """Says what comes next; the last answer for ever."""

    def __init__(self, *answers: ApiAnswer | Exception | None) -> None:
        self._answers = list(answers)
        self.said = 0

    def __call__(self, _api: ApiServer) -> ApiAnswer | None:
        self.said += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_what_is_said_is_counted_by_kind() -> None:
    telling = Telling(ApiModel())
    telling.tell(message("a", Script(FINE)), message("b", Script(FINE), kind="other"))
    telling.run()
    assert telling.outcomes == {("thing", "said"): 1, ("other", "said"): 1}


def test_only_the_newer_of_two_with_the_same_key_is_said() -> None:
    telling = Telling(ApiModel())
    old, new = Script(FINE), Script(FINE)
    telling.wishes.messages += [message("a", old), message("a", new)]
    telling.outbound.publish(ready_snapshot())
    telling.run()
    assert (old.said, new.said) == (0, 1)


def test_nothing_is_told_before_it_is_decided_nor_by_one_who_only_observes() -> None:
    telling = Telling(ApiModel())
    said = Script(FINE)
    for snapshot in (
        replace(ready_snapshot(), tentative=True),
        replace(ready_snapshot(), observe=True),
    ):
        telling.wishes.messages = [message("a", said)]
        telling.outbound.publish(snapshot)
        telling.run(10)
    assert said.said == 0


def test_snapshots_that_come_fast_are_looked_at_once_a_second() -> None:
    telling = Telling(ApiModel())
    said = [Script(FINE) for _ in range(20)]
    for number, script in enumerate(said):
        telling.wishes.messages = [message(str(number), script)]
        telling.outbound.publish(ready_snapshot())
        telling.run(0.1)
    assert [s.said for s in said].count(1) <= 3


def test_a_server_that_does_not_answer_is_asked_ever_more_rarely() -> None:
    api = SilentApi()
    telling = Telling(api)
    telling.tell(*(message(str(n), lambda api: api.ask("GET", "/x")) for n in range(100)))
    telling.run(60)
    assert api.requests == 6  # after 0, 1, 3, 7, 15 and 31 s
    telling.run(600)
    assert api.requests == 16  # once a minute
    assert telling.outbound.numbers().pending == 100
    assert telling.outcomes == {("thing", "unanswered"): 16}


def test_it_is_another_message_that_tries_whether_the_server_is_back() -> None:
    telling = Telling(ApiModel())
    tried: list[str] = []

    def poison(_api: ApiServer) -> ApiAnswer:
        tried.append("poison")
        raise KubernetesError("no answer")

    def other(_api: ApiServer) -> ApiAnswer:
        tried.append("other")
        return FINE

    telling.tell(message("poison", poison), message("other", other))
    telling.run(1)
    assert tried == ["poison", "other", "poison"]


@pytest.mark.parametrize(
    "answer", [OVERLOADED, status(503), status(504, "timeout", "Timeout"), status(401)]
)
def test_a_server_in_trouble_is_left_alone_by_all_messages_of_a_kind(answer: ApiAnswer) -> None:
    telling = Telling(ApiModel())
    first, second = Script(answer, FINE), Script(FINE)
    telling.tell(message("a", first), message("b", second))
    telling.run(answer.wait_s + 0.9)
    assert second.said == 0
    telling.run(0.1)
    assert (first.said, second.said) == (2, 1)


def test_what_hangs_for_one_kind_delays_the_others_by_one_try_at_most() -> None:
    telling = Telling(ApiModel())
    tries: list[float] = []

    def hang(_api: ApiServer) -> ApiAnswer:
        telling.clock.advance(10.0)
        tries.append(telling.clock.monotonic_s())
        raise KubernetesError("no answer to PATCH: ReadTimeoutError")

    telling.tell(*(message(str(number), hang) for number in range(250)))
    for number in range(100):
        said: list[float] = []

        def say(_api: ApiServer, said: list[float] = said) -> ApiAnswer:
            said.append(telling.clock.monotonic_s())
            return FINE

        asked_s = telling.clock.monotonic_s()
        telling.tell(message(str(number), say, kind="other"))
        telling.run(30)
        assert said[0] - asked_s <= 11.0
    assert len(tries) < 60


def test_the_server_says_how_long_to_wait() -> None:
    telling = Telling(ApiModel())
    said = Script(replace(OVERLOADED, wait_s=120.0), FINE)
    telling.tell(message("a", said))
    telling.run(120)
    assert said.said == 1
    telling.run(1)
    assert said.said == 2


def test_a_disruption_budget_is_asked_again_for_ever_and_stops_nobody_else() -> None:
    telling = Telling(ApiModel())
    evict, other = Script(status(429, BUDGET, "TooManyRequests")), Script(FINE)
    telling.tell(message("a", evict), message("b", other))
    telling.run()
    assert other.said == 1
    telling.run(3600)
    assert evict.said == 6 + 3600 // 60 - 1
    assert telling.outbound.numbers().pending == 1


def test_a_fault_of_the_server_is_tried_five_times() -> None:
    telling = Telling(ApiModel())
    said = Script(status(500, "This pod has more than one PodDisruptionBudget"))
    telling.tell(message("a", said))
    telling.run(3600)
    assert said.said == 5
    assert telling.outcomes == {("thing", "postponed"): 4, ("thing", "refused"): 1}


@pytest.mark.parametrize("code", [400, 404, 409, 410, 415, 422])
def test_a_plain_refusal_is_final(code: int) -> None:
    telling = Telling(ApiModel())
    said = Script(status(code, "no", "Invalid"))
    telling.tell(message("a", said))
    telling.run(3600)
    assert said.said == 1
    assert telling.outcomes == {("thing", "refused"): 1}


def test_a_refusal_may_be_as_good_as_done() -> None:
    telling = Telling(ApiModel())
    told = status(409, "already exists", "AlreadyExists")
    telling.tell(Message(key=("event", "a"), say=Script(told), fine=frozenset({409})))
    telling.run()
    assert telling.outcomes == {("event", "said"): 1}


def test_a_message_may_have_become_pointless() -> None:
    telling = Telling(ApiModel())
    telling.tell(message("a", Script(None)))
    telling.run()
    assert telling.outcomes == {}
    assert telling.outbound.numbers().pending == 0


def test_a_missing_right_costs_one_request_in_five_minutes() -> None:
    telling = Telling(ApiModel())
    said = Script(forbidden("pods"), forbidden("pods"), FINE)
    other = Script(FINE)
    telling.tell(*(message(str(n), said) for n in range(50)), message("x", other, kind="other"))
    telling.run(299)
    assert (said.said, other.said) == (1, 1)
    telling.run(2)
    assert said.said == 2
    assert telling.outbound.numbers().troubles == {"thing": "403: pods is forbidden"}

    telling.run(400)  # somebody gave the right
    assert telling.outbound.numbers() == OutboundNumbers(
        outcomes={("thing", "postponed"): 2, ("thing", "said"): 50, ("other", "said"): 1}
    )


def test_a_right_that_is_missing_in_one_namespace_silences_no_other() -> None:
    telling = Telling(ApiModel())
    refused, said = Script(forbidden("events")), Script(FINE)
    for number in range(20):
        for namespace, script in (("closed", refused), ("open", said)):
            key = ("event", f"{namespace}{number}")
            telling.wishes.messages.append(Message(key=key, say=script, namespace=namespace))
    telling.tell()
    telling.run(60)
    assert (refused.said, said.said) == (1, 20)
    telling.run(300)
    assert refused.said == 2


QUOTA = status(403, 'events "x" is forbidden: exceeded quota: q, used: 5, limited: 5', "Forbidden")
ENDING = status(403, "is being terminated", causes=[{"reason": "NamespaceTerminating"}])


@pytest.mark.parametrize("answer", [QUOTA, ENDING], ids=["quota", "namespace that ends"])
def test_what_forbids_one_object_is_no_missing_right(answer: ApiAnswer) -> None:
    telling = Telling(ApiModel())
    said = Script(answer, FINE)
    telling.tell(message("a", said), message("b", said))
    telling.run()
    assert telling.outcomes == {("thing", "refused"): 1, ("thing", "said"): 1}


def test_a_message_can_ask_for_later() -> None:
    telling = Telling(ApiModel())
    said = Script(NotNow("nobody is there", wait_s=600), FINE)
    telling.tell(message("a", said))
    telling.run(659)
    assert telling.outbound.numbers().troubles == {"thing": "nobody is there"}
    telling.run(1)
    assert said.said == 2
    assert telling.outbound.numbers().troubles == {}


def test_at_most_five_a_second_go_out_after_a_burst() -> None:
    telling = Telling(ApiModel())
    said = Script(FINE)
    telling.tell(*(message(str(n), said) for n in range(200)))
    telling.run(0.1)
    assert said.said == 25
    telling.run(10)
    assert said.said == 75


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    telling = Telling(SilentApi(), settings=OutboundSettings(most_pending=10))
    telling.tell(*(message(str(n), lambda api: api.ask("GET", "/x")) for n in range(30)))
    assert telling.outbound.numbers().pending == 10
    assert telling.outcomes["thing", "dropped"] == 20


def test_what_is_wrong_is_logged_once_and_so_is_its_end() -> None:
    telling = Telling(ApiModel())
    silence = KubernetesError("a"), KubernetesError("b")
    with capture_logs() as logs:
        telling.tell(message("a", Script(status(503), *silence, status(503), FINE)))
        telling.run(60)
    assert [(entry["event"], entry.get("what")) for entry in logs] == [
        ("outbound_trouble", "503: no reason given"),
        ("outbound_trouble", "a"),
        ("outbound_trouble", "503: no reason given"),
        ("outbound_well", None),
    ]


def test_a_refusal_of_many_is_a_warning_once() -> None:
    telling = Telling(ApiModel())
    with capture_logs() as logs:
        telling.tell(*(message(str(n), Script(NO_SUCH_PAGE)) for n in range(20)))
        telling.run()
    assert [entry["log_level"] for entry in logs] == ["warning", *["debug"] * 19]
    assert logs[0]["key"] == "thing/0"
    assert logs[0]["what"] == "404: 404 page not found"


def running(*messages: Message) -> Outbound:
    clock = SimulatedClock()
    outbound = Outbound(ApiModel(), (Wishes(list(messages)),), clock)
    outbound.start()
    outbound.publish(ready_snapshot())
    return outbound


def test_the_thread_says_what_is_published() -> None:
    said = threading.Event()

    def say(_api: ApiServer) -> ApiAnswer:
        said.set()
        return FINE

    outbound = running(message("a", say))
    assert said.wait(10)
    outbound.close()
    assert outbound.numbers().outcomes == {("thing", "said"): 1}


def test_the_end_waits_for_nobody() -> None:
    begun, never = threading.Event(), threading.Event()

    def say(_api: ApiServer) -> ApiAnswer:
        begun.set()
        never.wait(60)
        raise KubernetesError("no answer")

    outbound = running(message("a", say))
    assert begun.wait(10)
    before = threading.active_count()
    outbound.close()
    outbound.close()
    assert threading.active_count() == before  # it is left behind, and asks for nothing more
    never.set()
    outbound.close()
    assert outbound.numbers().outcomes == {}


def test_a_bug_in_one_message_silences_only_that() -> None:
    well = threading.Event()

    def say(_api: ApiServer) -> ApiAnswer:
        well.set()
        return FINE

    clock = SimulatedClock()
    wishes = Wishes([message("bug", Script(ZeroDivisionError())), message("a", say)])
    settings = OutboundSettings(backoff_most_s=0.01)
    outbound = Outbound(ApiModel(), (wishes,), clock, settings=settings)
    with capture_logs() as logs:
        outbound.start()
        outbound.publish(ready_snapshot())
        assert well.wait(10)
        outbound.close()
    assert [entry["event"] for entry in logs] == ["outbound_failed"]
