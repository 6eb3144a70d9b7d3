"""How the process ends, whatever happens in it: no traceback for people, a status for programs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent import __version__
from agent.cli import main
from agent.errors import InvariantBroken
from tests.cli.rig import PROJECT

INTERRUPT_AT_IMPORT = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs tests in the background ignores it

class Person:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Person())
from agent.cli import main
main()
"""


def ended(code: str, *words: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run Python code as the program."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("module", ["agent.commands", "typer", "agent.config", "pydantic.main"])
def test_ctrl_c_while_python_imports_ends_with_status_130_and_silently(module: str) -> None:
    process = ended(INTERRUPT_AT_IMPORT.format(module=module), "topology")
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")


def test_ctrl_c_in_a_command_ends_with_status_130_and_silently(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        main(interrupted)
    assert end.value.code == 130
    assert capsys.readouterr() == ("", "")


def test_a_bug_is_status_70_with_its_traceback_and_where_to_report_it() -> None:
    process = ended("from agent.cli import main; main(lambda: 1 / 0)")
    assert (process.returncode, process.stdout) == (70, "")
    first, second, *_, bug, sentence = process.stderr.splitlines()
    assert (first, second) == ("internal_error", "Traceback (most recent call last):")
    assert bug == "ZeroDivisionError: division by zero"
    assert sentence == (
        "numalet: this is a bug of numalet (ZeroDivisionError): please report it where you got"
        " numalet from, with the traceback above and what `numalet --version` prints"
    )


def test_a_package_that_is_missing_is_status_70_too() -> None:
    process = ended("import sys; sys.modules['typer'] = None; from agent.cli import main; main()")
    assert process.returncode == 70
    assert "numalet: this is a bug of numalet (ModuleNotFoundError)" in process.stderr


def test_the_daemon_logs_a_bug_as_it_logs_everything() -> None:
    process = ended(
        "from agent.cli import main; from agent.logs import configure_logs\n"
        "configure_logs('json', 'info'); main(lambda: 1 / 0)"
    )
    logged, sentence = process.stderr.splitlines()
    line = json.loads(logged)
    assert (line["event"], line["level"]) == ("internal_error", "critical")
    assert line["exception"].endswith("ZeroDivisionError: division by zero")
    assert sentence.startswith("numalet: this is a bug")


def test_a_broken_promise_is_status_70_with_its_own_sentence_and_a_traceback(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise InvariantBroken("CPU 3 has two owners")

    with pytest.raises(SystemExit) as end:
        main(broken)
    assert end.value.code == 70
    assert capsys.readouterr().err == "numalet: CPU 3 has two owners\n"
    assert "Traceback" in caplog.text


def test_the_installed_program_is_this_entry(tmp_path: Path) -> None:
    process = subprocess.run(
        [Path(sys.executable).with_name("numalet"), "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert process.stdout == f"numalet {__version__}\n"
