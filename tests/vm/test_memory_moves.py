"""Memory with care on a real kernel: what moves, what is refused, who waits, who is let out."""

import json
from typing import Any

import pytest

from hack.lab.topology import TOPOLOGIES

from .memory_daemon import USED_MIB
from .memory_stories import DEADLINE_S, HUGE_PAGES, MIB
from .rig import in_guest

pytestmark = pytest.mark.vm

Told = dict[str, Any]
POD, OTHER = "/numalet-stories/pod", "/numalet-stories/other"


@pytest.fixture(scope="module")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("memory-moves")
    command = f"python -m tests.vm.memory_stories {folder}"
    outcome = in_guest(TOPOLOGIES["2n"], command, results=folder)
    assert outcome.status == 0, outcome.stderr
    told: Told = json.loads((folder / "observed.json").read_text())
    return told


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("memory-daemon")
    command = f"python -m tests.vm.memory_daemon {folder}"
    outcome = in_guest(TOPOLOGIES["sample"], command, results=folder)
    log = folder / "agent.log"
    assert outcome.status == 0, f"{outcome.stderr}\n{log.read_text() if log.exists() else ''}"
    told: Told = json.loads((folder / "observed.json").read_text())
    return {**told, "log": log.read_text()}


def test_pages_touched_on_the_wrong_node_are_on_the_right_one_afterwards(stories: Told) -> None:
    before, after = stories["wrong node"]["before"], stories["wrong node"]["after"]

    assert (before["charged"][0] >= 100, before["mapped"][0] >= 100) == (True, True)
    assert (after["charged"][0], after["charged"][1] >= 100) == (0, True)
    assert (after["mapped"][0], after["mapped"][1] >= 100) == (0, True)
    assert after["moved_bytes"] >= 100 * MIB
    assert (after["mems"], after["problems"], after["in_flight"]) == ("1", [], [])


def test_the_next_pass_finds_nothing_to_do(stories: Told) -> None:
    following = stories["wrong node"]["next"]

    assert (following["writes"], following["drift"], following["problems"]) == ({}, [], [])


def test_what_does_not_fit_is_refused_with_numbers_and_nothing_is_written(stories: Told) -> None:
    refused = stories["too small"]["refused"]

    (problem,) = refused["problems"]
    assert problem.startswith(f"{POD}/cpuset.mems is not set to 1: 50")
    assert "Mi would move to NUMA node 1, which has" in problem
    assert (refused["mems"], refused["effective"], refused["writes"]) == ("0", "0", {})
    assert refused["charged"][0] >= 500


def test_it_is_moved_in_a_later_pass_once_it_fits(stories: Told) -> None:
    later = stories["too small"]["later"]

    assert (later["mems"], later["problems"]) == ("1", [])
    assert (later["charged"][0], later["charged"][1] >= 500) == (0, True)


def test_the_deadline_ends_the_waiting_for_a_large_move_and_not_the_move(stories: Told) -> None:
    first, third = stories["large"]["first"], stories["large"]["third"]

    assert (first["in_flight"], first["problems"], first["drift"]) == ([POD], [], [])
    assert first["seconds"] >= DEADLINE_S
    assert stories["large"]["ended"]
    assert (third["in_flight"], third["problems"], third["drift"]) == ([], [], [])
    assert (third["charged"][0], third["charged"][1] >= 700) == (0, True)


def test_other_writers_to_cpusets_wait_meanwhile_and_ours_take_effect_at_once(
    stories: Told,
) -> None:
    second, (other_s,) = stories["large"]["second"], stories["large"]["other"]

    assert (second["in_flight"], second["problems"]) == ([POD], [])
    assert (second["other_cpus"], second["writes"]["cpuset.cpus"]) == ("2-3", 1)
    assert other_s > second["seconds"]


def test_one_moves_at_a_time_and_the_other_waits_for_it(stories: Told) -> None:
    story = stories["one at a time"]
    rounds = story["passes"]

    assert sorted(rounds[0]["moves"]) == [OTHER, POD]
    assert all(sum(one["moves"].values()) <= 1 for one in rounds)
    assert (rounds[-1]["problems"], rounds[-1]["in_flight"]) == ([], [])
    for charged, used in ((story["charged"]["pod"], 400), (story["charged"]["other"], 300)):
        assert (charged[0], charged[1] >= used) == (0, True)


def test_who_may_ask_for_more_than_there_is_is_not_bound_until_its_limit_fits(
    stories: Told,
) -> None:
    refused, later = (stories["asking for too much"][name] for name in ("refused", "later"))

    (problem,) = refused["problems"]
    assert problem.startswith(
        f"{POD}/cpuset.mems is not set to 1: up to its memory.max it may ask for"
    )
    assert (refused["mems"], refused["charged"][1], refused["writes"]) == ("0", 0, {})
    assert (later["mems"], later["problems"], later["charged"][0]) == ("1", [], 0)


def test_huge_pages_move_once_as_many_are_free_on_their_new_node(stories: Told) -> None:
    """Where they are only the process's own maps say: the controller's tally stays as it was."""
    story = stories["huge pages"]

    (problem,) = story["refused"]["problems"]
    assert "8Mi in huge pages of 2Mi would move to NUMA node 1, which has 0 of them free" in problem
    assert (story["refused"]["mems"], story["refused"]["writes"]) == ("0", {})
    assert (story["later"]["mems"], story["later"]["problems"]) == ("1", [])
    places = [story[when].rpartition(" ")[0].rpartition(" ")[2] for when in ("before", "after")]
    assert places == [f"N0={HUGE_PAGES}", f"N1={HUGE_PAGES}"]
    assert story["tally"] == "total=8388608 N0=8388608 N1=0"


def test_without_soft_mems_a_pod_that_outgrows_its_node_ends_in_a_kill_and_was_warned_of(
    stories: Told,
) -> None:
    """The kernel kills who has most there, which need not be who asked for more."""
    story = stories["outgrown"]

    (sentence,) = story["short"]["shortages"]
    assert sentence.startswith("NUMA nodes 1 have ")
    assert (story["before"]["shortages"], story["before"]["mems"]) == ([], "1")
    assert (story["short"]["mems"], story["short"]["widened"]) == ("1", [])
    assert False in story["lives"].values()


def test_with_soft_mems_it_is_let_out_before_and_nobody_is_killed(stories: Told) -> None:
    story = stories["outgrown, soft"]

    assert (story["before"]["mems"], story["before"]["widened"]) == ("1", [])
    assert (story["short"]["effective"], story["short"]["widened"]) == ("0-1", [POD])
    assert (story["short"]["problems"], story["short"]["drift"]) == ([], [])
    assert story["lives"] == {"pod": True, "stranger": True}
    assert sum(story["charged"]) >= 600


def test_passes_go_on_and_say_so_while_a_great_deal_moves(daemon: Told) -> None:
    before, moving = daemon["before"], daemon["on their way"]

    assert (before["mems"], before["charged"][0] >= USED_MIB) == ("0", True)
    assert (moving["healthz"], moving["in flight"]) == ("ok\n", 1)
    assert moving["charged"][0] > 0  # after some passes


def test_a_stop_meanwhile_ends_with_status_0_and_all_of_it_has_moved(daemon: Told) -> None:
    after = daemon["after"]

    assert daemon["exit"] == 0
    assert after["mems"] == "1"
    assert (after["charged"][0], after["charged"][1] >= USED_MIB) == (0, True)


def test_the_daemon_tells_everybody_of_a_node_that_runs_short_and_lets_the_pod_out(
    daemon: Told,
) -> None:
    story = daemon["outgrown"]

    assert (story["bound"], story["mems"], story["exit"]) == ("1", "0-1", 0)
    (sentence,) = story["status"]["shortages"]
    (event,) = story["events"]
    assert (event["involvedObject"]["kind"], event["type"], event["message"]) == (
        "Node",
        "Warning",
        sentence,
    )
    assert sentence.startswith("NUMA nodes 1 have ")
    assert float(*story["gauge"]) == 1
    assert "memory_short" in daemon["log"]
