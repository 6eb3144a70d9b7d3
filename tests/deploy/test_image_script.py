"""How long `hack/image` uses a base that it has made, by programs that only say what they were asked."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from .tools import PROJECT

DAY_S = 86_400
PROGRAMS = {
    "apt-cache": "echo '  Candidate: 2.0.16-1'",
    "apt-get": "",
    "buildah": 'case $1 in inspect) [ "$MADE" ] && echo "$MADE" ;; from) echo container ;; esac',
    "id": "echo 0",
    "mmdebstrap": "",
}


def asked(folder: Path, *words: str, made_s: float | None) -> str:
    """Return what the programs were asked to do, a line each."""
    log = folder / "log"
    for name, does in PROGRAMS.items():
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{log}\n{does}\n')
        path.chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ.get('PATH', os.defpath)}",
        "MADE": "" if made_s is None else f"{made_s:.0f}",
    }
    command = [str(PROJECT / "hack/image"), "--debian", *words]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    return log.read_text()


@pytest.mark.parametrize(
    ("words", "age_s", "is_made"),
    [
        ((), None, True),
        ((), DAY_S, False),
        ((), 6 * DAY_S, False),
        ((), 8 * DAY_S, True),
        (("--fresh",), DAY_S, True),
    ],
)
def test_a_base_is_used_for_a_week_unless_a_fresh_one_is_wanted(
    words: tuple[str, ...], age_s: int | None, *, is_made: bool, tmp_path: Path
) -> None:
    made_s = None if age_s is None else time.time() - age_s

    told = asked(tmp_path, *words, "numalet:test", made_s=made_s)

    assert ("mmdebstrap " in told) is is_made
    assert "--build-arg BASE=localhost/numalet-base:" in told
    assert "--tag numalet:test ." in told
