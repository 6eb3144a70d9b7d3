"""``numalet state verify``: what is wrong with the checkpoint, and what the next start makes of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agent.node.checkpoint import COPIES, CheckpointStore
from agent.node.checkpoint_format import VERSION
from tests.cli.rig import Cli
from tests.cli.test_state import CONFIG, A, Place
from tests.node.fragile_disks import Clock


@pytest.fixture
def state(tmp_path: Path, numalet: Cli) -> Place:
    return Place(tmp_path, numalet)


def test_verify_is_content_with_a_whole_checkpoint_that_fits(state: Place) -> None:
    state.save(A)
    ended = state("verify")
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == "generation 1: whole, and fits this machine and configuration\n"


def test_verify_names_the_damaged_copy(state: Place) -> None:
    state.save(A)
    (state.state / COPIES[0]).write_text("{}")
    ended = state("verify")
    assert (ended.status, ended.out) == (5, "")
    assert ended.err.splitlines() == [
        f"{state.state / COPIES[0]}: not a checkpoint",
        (
            "numalet: the next start sets aside what is damaged; it goes on from generation 1: pods keep"
            " what they hold; it writes both copies again"
        ),
    ]
    assert (state.state / COPIES[0]).read_text() == "{}"


def newer(text: str) -> str:
    """Return a checkpoint that a numalet of the future wrote: only it knows what is behind this."""
    return text.replace(f'"version":{VERSION}', f'"version":{VERSION + 1}', 1)[:-10]


@pytest.mark.parametrize(
    ("spoil", "statuses", "summary"),
    [
        (
            lambda text: None,
            ["missing", "whole"],
            (
                "the next start goes on from generation 1: pods keep what they hold; it writes both "
                "copies again"
            ),
        ),
        (
            newer,
            ["newer", "whole"],
            (
                "the next start only observes, and leaves what a newer numalet wrote as it is: start "
                "that one again, or move the file away"
            ),
        ),
        (
            lambda text: text[:-10],
            ["damaged", "whole"],
            (
                "the next start sets aside what is damaged; it goes on from generation 1: pods keep "
                "what they hold; it writes both copies again"
            ),
        ),
    ],
    ids=["missing", "newer", "damaged"],
)
def test_verify_says_what_the_next_start_really_does(
    state: Place, spoil: Callable[[str], str | None], statuses: list[str], summary: str
) -> None:
    state.save(A)
    copy = state.state / COPIES[0]
    text = spoil(copy.read_text())
    copy.unlink() if text is None else copy.write_text(text)

    ended = state("verify", "-o", "json")

    assert (ended.status, ended.err) == (5, f"numalet: {summary}\n")
    document = ended.json()
    assert [file["status"] for file in document["files"]] == statuses
    assert document["summary"] == summary
    # And so it does.
    loaded = CheckpointStore(state.state, Clock()).load()
    assert loaded.newer_version == ("newer" in statuses)
    assert (loaded.remembered is not None) == (not loaded.newer_version)
    assert copy.exists() == ("newer" in statuses)
    aside = [path for path in state.state.iterdir() if "damaged" in path.name]
    assert len(aside) == statuses.count("damaged")


def test_verify_as_json_has_every_file_and_every_problem(state: Place) -> None:
    state.save(A)
    (state.state / COPIES[1]).write_text("{}")
    state.config.write_text(CONFIG + "cpuManagerPolicyOptions: {strict-cpu-reservation: true}\n")
    first, second = (str(state.state / name) for name in COPIES)
    assert state("verify", "-o", "json").json() == {
        "files": [
            {"path": first, "status": "whole", "generation": 1, "reason": ""},
            {"path": second, "status": "damaged", "generation": None, "reason": "not a checkpoint"},
        ],
        "problems": [
            f"{second}: not a checkpoint",
            "the state does not fit this machine and configuration",
        ],
        "summary": "the next start sets aside what is damaged; it goes on from generation 1: pods "
        "keep what they hold; it works out anew what is left; it writes both copies again",
    }


def test_verify_as_json_of_a_whole_checkpoint_has_no_problems(state: Place) -> None:
    state.save(A)
    ended = state("verify", "-o", "json")
    document = ended.json()
    assert (ended.status, ended.err, document["problems"]) == (0, "", [])
    assert [file["status"] for file in document["files"]] == ["whole", "whole"]
    assert document["summary"].startswith("generation 1: whole, and fits")


def test_one_spoilt_copy_alone_does_not_tell_what_the_next_start_does(state: Place) -> None:
    copy = state.state / COPIES[0]
    copy.write_text("{}")
    where = ("--state", copy, "--simulate", state.machine, "--config", state.config)
    ended = state.numalet("state", "verify", *where)
    assert (ended.status, ended.out) == (5, "")
    assert ended.err.splitlines()[-1] == (
        "numalet: this copy cannot be used: name the folder, to see what the next start has"
    )


def test_verify_without_a_checkpoint_says_what_the_next_start_does(state: Place) -> None:
    ended = state("verify")
    assert (ended.status, ended.out) == (5, "")
    assert ended.err.splitlines() == [
        *(f"{state.state / name}: cannot be read: No such file or directory" for name in COPIES),
        (
            "numalet: the next start takes over what runs from its cgroups, and decides on all others"
            " anew"
        ),
    ]


def test_verify_says_that_the_machine_is_another(state: Place) -> None:
    state.save(A)
    state.config.write_text(CONFIG + "cpuManagerPolicyOptions: {strict-cpu-reservation: true}\n")
    ended = state("verify")
    assert ended.status == 5
    assert "the state does not fit this machine and configuration" in ended.err
