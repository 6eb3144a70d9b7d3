"""README.md shows what its commands print."""

from pathlib import Path

from tests.cli.rig import EXAMPLES, MACHINE, Cli
from tests.report.rig import free_port
from tests.shown import shown


def lines(text: str) -> list[str]:
    """Return what each run prints: neither its own folder and port, nor what fills a column."""
    own = ("cgroup files:", "ask it:", "metrics:")
    return [line.rstrip() for line in text.splitlines() if not line.startswith(own)]


def test_make_run_prints_the_table_that_the_readme_shows(tmp_path: Path, numalet: Cli) -> None:
    config = tmp_path / "config.yaml"
    address = f"metricsAddress: 127.0.0.1:{free_port()}\n"
    config.write_text((EXAMPLES / "config.yaml").read_text() + address)

    words = ("--simulate", MACHINE, "--pods", EXAMPLES / "pods", "--config", config)
    ended = numalet("run", "--once", *words)

    assert ended.status == 0, ended.err
    assert lines(ended.out) == lines(shown("$ make run"))
