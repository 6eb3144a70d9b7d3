"""`hack/vm` does what it says."""

import os
import pty
import subprocess
from contextlib import suppress

import pytest

from hack.lab.errors import LabError
from hack.lab.guest import BOOT_TRIES, PROJECT, Job, run
from hack.lab.topology import TOPOLOGIES
from tests.shown import shown

pytestmark = [pytest.mark.vm, pytest.mark.usefixtures("lab")]


def vm(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [PROJECT / "hack/vm", *arguments],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_output_and_status_of_the_command_come_back_and_what_it_wrote_is_forgotten() -> None:
    mark = PROJECT / "written-in-a-guest"

    done = vm("--", f"touch {mark}; test -e {mark} && echo here; echo there >&2; exit 7")

    assert (done.returncode, done.stdout, done.stderr) == (7, "here\n", "there\n")
    assert not mark.exists()


def test_a_command_that_takes_too_long_ends_with_status_124() -> None:
    assert vm("--timeout", "3", "--", "sleep", "1000").returncode == 124


def test_a_guest_that_dies_ends_with_status_125_and_its_last_words() -> None:
    done = vm("--", "echo farewell >/dev/console; echo o >/proc/sysrq-trigger; sleep 1000")

    assert done.returncode == 125
    assert "farewell" in done.stderr


def test_the_kernel_grants_the_pod_of_the_readme_what_the_readme_shows() -> None:
    done = vm("--topology", "sample", "--systemd", "--", "hack/tour")

    assert done.returncode == 0, done.stderr
    assert done.stdout == shown("# hack/vm --topology sample --systemd -- hack/tour")


def test_without_a_command_it_is_a_shell_in_the_terminal() -> None:
    terminal, inside = pty.openpty()
    shell = subprocess.Popen([PROJECT / "hack/vm"], stdin=inside, stdout=inside, stderr=inside)
    os.close(inside)

    shown = b""
    while b"# " not in shown:
        shown += os.read(terminal, 1000)
    os.write(terminal, b"exit $((3 + 4))\n")
    with suppress(OSError):  # EIO: nobody has the terminal any more
        while os.read(terminal, 1000):
            pass

    assert shell.wait() == 7, shown
    os.close(terminal)


def test_a_boot_that_hangs_is_tried_again_but_not_for_ever(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = Job(topology=TOPOLOGIES["2n"], command="true", boot_timeout_s=0.2)

    with pytest.raises(LabError, match="boots failed"):
        run(job)

    assert capsys.readouterr().err.count("failed: no guest after 0.2 s") == BOOT_TRIES
