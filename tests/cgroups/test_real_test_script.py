"""`hack/real-test` refuses beside others, by programs that only say what they were asked."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.core.checkup_rivals import KUBELETS, MANAGERS

PROJECT = Path(__file__).resolve().parents[2]
PROGRAMS = {
    "id": "echo 0",
    "stat": "echo cgroup2fs",
    "pgrep": '[ "$2" = "$RUNS" ]',
    "nproc": "echo ${CPUS:-4}",
    "mkdir": "exit 99",
}
"""Who is not refused makes a cgroup next: here that ends the script."""


def program(path: Path, does: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{does}\n")
    path.chmod(0o755)


def real_test(folder: Path, runs: str, cpus: int = 4) -> "subprocess.CompletedProcess[str]":
    """Run a copy of the script where a program runs, and nothing can be made."""
    for name, does in PROGRAMS.items():
        program(folder / "bin" / name, does)
    program(folder / ".venv/bin/python", f'exec {sys.executable} "$@"')
    script = folder / "hack/real-test"
    script.parent.mkdir()
    shutil.copy(PROJECT / "hack/real-test", script)
    environment = {
        "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": str(PROJECT),
        "RUNS": runs,
        "CPUS": str(cpus),
    }
    return subprocess.run([script], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["numalet", *KUBELETS, *MANAGERS])
def test_it_refuses_beside_whoever_writes_cpusets(name: str, tmp_path: Path) -> None:
    comm = name[:15]
    done = real_test(tmp_path, comm)
    assert done.returncode == 3
    assert f"real-test: {comm}" in done.stderr
    assert "runs here" in done.stderr


def test_it_goes_on_where_no_such_program_runs(tmp_path: Path) -> None:
    if Path("/var/lib/kubelet/cpu_manager_state").exists():
        pytest.skip("a kubelet has been here")
    assert real_test(tmp_path, "kubectl").returncode == 99


def test_it_refuses_where_too_few_cpus_would_have_it_try_nothing(tmp_path: Path) -> None:
    done = real_test(tmp_path, "kubectl", cpus=3)
    assert (done.returncode, "fewer than 4 CPUs" in done.stderr) == (3, True)
