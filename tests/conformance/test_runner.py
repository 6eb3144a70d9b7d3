"""The runner itself: it fails where an answer, a file or an invariant is wrong."""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.admission import admit
from agent.core.cpuset import CPUSet
from agent.core.pods import PodUID
from agent.core.startup import Rules, start
from agent.core.state import NodeState, PodEntry
from tests.conformance.invariants import broken_promises
from tests.conformance.node import Answer, Node
from tests.conformance.replay import first_difference, replay
from tests.conformance.report import SHOWN, Report
from tests.conformance.scenario import Json, pod, policy, read_scenarios, topology
from tests.conformance.timing import times

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "data" / "conformance"


def find(theme: str, wanted: Callable[[Json], bool]) -> Json:
    return next(s for s in read_scenarios(VECTORS / f"{theme}.jsonl.gz") if wanted(s))


def ops(scenario: Json) -> list[str]:
    return [step["op"] for step in scenario["steps"]]


def expected(scenario: Json, key: str) -> Json:
    """Return the first recorded answer that has ``key``; the caller may change it."""
    return next(s["expect"] for s in scenario["steps"] if key in s["expect"])


@pytest.fixture(scope="module")
def kep_example() -> Json:
    """Return a scenario with hints, files, an admitted pod and exact answers."""
    found = find(
        "kep_examples",
        lambda s: any(x["expect"].get("hints") and x["expect"]["admitted"] for x in s["steps"]),
    )
    assert replay(found).verdict == "exact"
    return found


def tamper_qos(scenario: Json) -> None:
    expected(scenario, "qos")["qos"] = "Burstable"


def tamper_default_set(scenario: Json) -> None:
    expected(scenario, "cpu")["cpu"]["default"] = "0"


def tamper_memory(scenario: Json) -> None:
    expected(scenario, "mem")["mem"]["nodes"]["0"]["assignments"] += 1


def tamper_affinity(scenario: Json) -> None:
    expected(scenario, "containers")["containers"][0]["affinity"][1] ^= True


def tamper_pod_quota(scenario: Json) -> None:
    expected(scenario, "containers")["pod_quota_disabled"] ^= True


def tamper_hint(scenario: Json) -> None:
    lists = [h["hints"] for h in expected(scenario, "hints")["hints"] if "hints" in h]
    next(iter(lists[0].values())).reverse()


def tamper_checksum(scenario: Json) -> None:
    files = expected(scenario, "files")["files"]
    document = json.loads(files["cpu_manager_state"])
    files["cpu_manager_state"] = json.dumps(document | {"checksum": document["checksum"] ^ 1})


def tamper_file(scenario: Json) -> None:
    files = expected(scenario, "files")["files"]
    files["memory_manager_state"] = files["memory_manager_state"].replace("Static", "None")


def tamper_allocatable(scenario: Json) -> None:
    scenario["init"]["allocatable_cpus"] = ""


@pytest.mark.parametrize(
    ("tamper", "path"),
    [
        (tamper_qos, "qos"),
        (tamper_default_set, "cpu.default"),
        (tamper_memory, "mem.nodes.0.assignments"),
        (tamper_affinity, "containers[0].affinity[1]"),
        (tamper_pod_quota, "pod_quota_disabled"),
        (tamper_hint, "hints[0].hints.cpu"),
        (tamper_checksum, "files.cpu_manager_state.checksum"),
        (tamper_file, "files.memory_manager_state"),
        (tamper_allocatable, "allocatable_cpus"),
    ],
)
def test_an_answer_that_is_not_the_recorded_one_fails_the_scenario(
    kep_example: Json, tamper: Callable[[Json], None], path: str
) -> None:
    scenario = copy.deepcopy(kep_example)
    tamper(scenario)

    outcome = replay(scenario)

    assert outcome.verdict == "failed"
    assert outcome.difference is not None
    assert outcome.difference.path.startswith(path)


@pytest.mark.parametrize("key", ["reason", "message", "residual"])
def test_a_rejection_with_another_reason_message_or_leftover_fails(key: str) -> None:
    scenario = find("kep_examples", lambda s: any("residual" in x["expect"] for x in s["steps"]))
    expected(scenario, key)[key] = "something else"

    outcome = replay(scenario)

    assert outcome.difference is not None
    assert outcome.difference.path == key
    assert outcome.difference.kubelet == "something else"


def test_a_refusal_to_start_with_another_text_fails() -> None:
    scenario = find("config_validation", lambda s: not s["init"]["ok"])
    assert replay(scenario).verdict == "exact"
    scenario["init"]["error"] += "!"

    assert replay(scenario).verdict == "failed"


@pytest.mark.parametrize("cpu_policy", ["static", "none such"])
def test_a_machine_that_is_too_large_for_the_kubelet_departs_whatever_is_wrong_besides(
    cpu_policy: str,
) -> None:
    scenario = find("config_validation", lambda s: "more than 8" in s["init"].get("error", ""))
    scenario["config"]["cpu_policy"] = cpu_policy

    assert replay(scenario).departures == {"more_than_8_nodes"}


@pytest.mark.parametrize("survived", [True, False])
def test_a_restart_that_ends_otherwise_fails(*, survived: bool) -> None:
    def restarted(scenario: Json) -> list[Json]:
        return [s["expect"]["init"] for s in scenario["steps"] if s["op"] == "restart"]

    scenario = find("restore_validation", lambda s: [i["ok"] for i in restarted(s)] == [survived])
    assert replay(scenario).verdict == "exact"
    restarted(scenario)[0]["ok"] = not survived

    assert replay(scenario).verdict == "failed"


def test_a_departure_counts_only_where_the_answers_differ() -> None:
    departed = find("checkpoints", lambda s: replay(s).verdict == "departed")
    assert replay(departed).departures == {"readmit"}

    exact = find("checkpoints", lambda s: "readmit" in ops(s) and replay(s).verdict == "exact")
    assert replay(exact).departures == frozenset()


def test_a_difference_before_the_departure_still_fails() -> None:
    scenario = find("checkpoints", lambda s: replay(s).verdict == "departed")
    tamper_default_set(scenario)

    assert replay(scenario).verdict == "failed"


def test_where_the_states_have_not_parted_later_answers_are_still_compared() -> None:
    def last_expectation_counts(scenario: Json) -> bool:
        if replay(scenario).verdict != "departed":
            return False
        changed = copy.deepcopy(scenario)
        changed["steps"][-1]["expect"]["cpu"] = {}
        return ops(scenario)[-1] != "readmit" and replay(changed).verdict == "failed"

    assert find("checkpoints", last_expectation_counts)


def test_a_crash_is_a_failure_with_its_traceback() -> None:
    scenario = find("memory", lambda s: bool(s["steps"]))
    scenario["steps"][0] = {"op": "explode", "uid": "p1", "expect": {}}

    outcome = replay(scenario)

    assert outcome.difference is not None
    assert outcome.difference.path == "crash"
    assert "unknown operation 'explode'" in str(outcome.difference.ours)


@pytest.fixture
def node() -> tuple[Rules, NodeState, Json]:
    """Return a machine on which one pod with a pool runs."""
    scenario = find("kep_examples", lambda s: bool(expected(s, "cpu")["cpu"]["pods"]))
    rules = start(topology(scenario["machine"]), policy(scenario["config"]))
    first = scenario["steps"][0]["pod"]
    return rules, admit(rules, rules.initial_state(), pod(first)).state, first


def test_a_sound_state_breaks_no_promise(node: tuple[Rules, NodeState, Json]) -> None:
    rules, state, first = node
    assert broken_promises(rules, state, {PodUID(first["uid"]): pod(first)}) == []


def test_a_cpu_with_two_owners_is_a_broken_promise(node: tuple[Rules, NodeState, Json]) -> None:
    rules, state, _ = node
    (held,) = state.pods.values()
    twice = replace(state, pods={**state.pods, PodUID("thief"): held})

    assert any("another owner" in text for text in broken_promises(rules, twice))


def test_a_lost_cpu_is_a_broken_promise(node: tuple[Rules, NodeState, Json]) -> None:
    rules, state, _ = node
    lost = replace(state, default=state.default - CPUSet([max(state.default)]))

    assert any("without an owner" in text for text in broken_promises(rules, lost))


def test_a_reserved_cpu_in_a_slice_is_a_broken_promise(
    node: tuple[Rules, NodeState, Json],
) -> None:
    rules, state, _ = node
    owner = PodEntry(cpus={"c": rules.reserved})
    taken = replace(
        state, default=state.default - rules.reserved, pods={**state.pods, PodUID("p"): owner}
    )

    assert any("reserved CPUs" in text for text in broken_promises(rules, taken))


def test_a_slice_outside_its_pool_is_a_broken_promise(
    node: tuple[Rules, NodeState, Json],
) -> None:
    rules, state, _ = node
    stray = CPUSet([max(state.default)])
    ((uid, held),) = state.pods.items()
    outside = replace(
        state,
        default=state.default - stray,
        pods={uid: replace(held, cpus={**held.cpus, "stray": stray})},
    )

    assert any("not in the pod's pool" in text for text in broken_promises(rules, outside))


def test_memory_that_does_not_add_up_is_a_broken_promise(
    node: tuple[Rules, NodeState, Json],
) -> None:
    rules, state, _ = node
    memory = state.memory[0]
    table = replace(memory.tables["memory"], free=0)
    missing = replace(state, memory={**state.memory, 0: replace(memory, tables={"memory": table})})

    assert any("do not add up" in text for text in broken_promises(rules, missing))


class Careless(Node):
    """Answers rightly, then loses the default CPU set."""

    def take(self, step: Json, *, hints: bool) -> Answer:
        answer = super().take(step, hints=hints)
        self.state = replace(self.state, default=CPUSet())
        return answer


def test_a_broken_promise_fails_a_scenario_whose_answers_are_exact() -> None:
    scenario = find("cpu_container_level", lambda s: len(s["steps"]) > 0)
    assert replay(scenario).verdict == "exact"

    outcome = replay(scenario, Careless)

    assert outcome.difference is not None
    assert outcome.difference.path == "promises"
    assert "CPUs without an owner" in str(outcome.difference.ours)


def test_the_first_difference_is_told_by_its_path() -> None:
    assert first_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == ("a[1].b", 2, 3)
    assert first_difference({"a": 1}, {}) == ("a", 1, "(absent)")
    assert first_difference({}, {"a": 1}) == ("a", "(absent)", 1)
    assert first_difference([1], [1, 2]) == ("", [1], [1, 2])


def test_the_report_shows_the_first_failures_with_both_answers_and_ends_with_the_sum(
    kep_example: Json,
) -> None:
    wrong = copy.deepcopy(kep_example)
    tamper_qos(wrong)
    report = Report()

    report.run([kep_example, *[wrong] * (SHOWN + 1)])

    lines = list(report.lines())
    assert sum(line.startswith("  kubelet: Burstable") for line in lines) == SHOWN
    assert sum(line.startswith("  numalet: Guaranteed") for line in lines) == SHOWN
    assert lines[-1] == f"1 passed, {SHOWN + 1} failed"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.conformance", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_command_ends_with_status_1_where_a_scenario_failed(
    tmp_path: Path, kep_example: Json
) -> None:
    wrong = copy.deepcopy(kep_example)
    tamper_qos(wrong)
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(json.dumps(kep_example))
    bad.write_text(json.dumps(wrong))

    assert run(good).returncode == 0
    failed = run(good, bad)
    assert failed.returncode == 1
    assert failed.stdout.splitlines()[-1] == "1 passed, 1 failed"


def test_the_command_without_files_says_what_it_wants() -> None:
    assert run().returncode == 2
    assert "name files to replay" in run().stderr


def test_times_have_one_entry_an_added_pod(tmp_path: Path) -> None:
    scenario = find("init_sidecars", lambda s: {"add", "remove", "start"} <= set(ops(s)))
    verdicts = [s["expect"]["admitted"] for s in scenario["steps"] if s["op"] == "add"]

    found = times(scenario, tmp_path, repeats=1)

    assert found.admitted == verdicts
    assert len(found.us) == len(found.us_with_checkpoint) == len(verdicts)
    assert all(us > 0 for us in found.us)


def test_nothing_is_timed_where_the_kubelet_would_not_start(tmp_path: Path) -> None:
    scenario = find("config_validation", lambda s: not s["init"]["ok"])
    assert times(scenario, tmp_path, repeats=1).us == []


def test_the_command_prints_a_line_of_times_a_scenario(tmp_path: Path, kep_example: Json) -> None:
    file = tmp_path / "one.jsonl"
    file.write_text(json.dumps(kep_example))

    line = json.loads(run("--times", file).stdout)

    assert list(line) == ["id", "admitted", "us", "us_with_checkpoint"]
    assert line["id"] == kep_example["id"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"5\n", "is no file of recorded scenarios: every line has an object with config, "),
        (b"{\n", "is no file of recorded scenarios: Expecting property name"),
        (b"\xff\n", "is no file of recorded scenarios: 'utf-8' codec can't decode"),
    ],
)
@pytest.mark.parametrize("words", [(), ("--times",)])
def test_what_is_no_file_of_scenarios_is_a_sentence_and_status_2(
    tmp_path: Path, words: tuple[str, ...], content: bytes | None, reason: str
) -> None:
    file = tmp_path / "vectors.jsonl"
    if content is not None:
        file.write_bytes(content)

    ended = run(*words, file)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"conformance: {file} {reason}")
    assert ended.stderr.count("\n") == 1


def test_a_compressed_file_that_is_cut_is_a_sentence_and_status_2(tmp_path: Path) -> None:
    file = tmp_path / "vectors.jsonl.gz"
    file.write_bytes((VECTORS / "memory.jsonl.gz").read_bytes()[:200])

    ended = run(file)

    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"conformance: {file} is no file of recorded scenarios: ")
