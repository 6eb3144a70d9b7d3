"""``cpu_manager_state`` and ``memory_manager_state``, for the tools that read them.

They lie in numalet's own state folder, never in the kubelet's, and nothing is ever read back from
them by the daemon: what counts is the checkpoint.
"""

from pathlib import Path

from agent.core.kubelet_files import render_cpu, render_memory
from agent.core.startup import Rules
from agent.core.state import NodeState
from agent.errors import StateFileError

CPU_FILE = "cpu_manager_state"
MEMORY_FILE = "memory_manager_state"


def render(rules: Rules, state: NodeState) -> dict[str, str]:
    """Return both files by name, in the format of kubelet v1.36 under the configured gates."""
    by_budget = rules.decides_by_budget
    policy = rules.policy
    return {
        CPU_FILE: render_cpu(state, policy_name=policy.cpu_policy, version=3 if by_budget else 2),
        MEMORY_FILE: render_memory(
            state, policy_name=policy.memory_policy, version=2 if by_budget else 1
        ),
    }


def write(folder: Path, files: dict[str, str]) -> None:
    """Replace files in a folder, each by rename; raises `StateFileError` where it cannot be done."""
    for name, text in files.items():
        temporary = folder / f"{name}.new"
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(folder / name)
        except OSError as error:
            raise StateFileError(f"cannot write {folder / name}: {error.strerror}") from error


def read(folder: Path) -> tuple[str | None, str | None]:
    """Return the texts of both files in a folder, None for one that is not there.

    Raises `StateFileError` where one cannot be read.
    """
    return _read(folder / CPU_FILE), _read(folder / MEMORY_FILE)


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StateFileError(f"cannot read {path}: {error}") from error
