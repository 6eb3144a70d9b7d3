"""``cpu_manager_state`` and ``memory_manager_state``, for the tools that read them.

They lie in numalet's own state folder, never in the kubelet's, and nothing is ever read back from
them by the daemon: what counts is the checkpoint.  Of the kubelet's own only the policies are read.
"""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

from agent.core.kubelet_files import render_cpu, render_memory
from agent.core.node_facts import KubeletFacts, RunningProcess
from agent.core.startup import Rules
from agent.core.state import NodeState
from agent.errors import StateFileError

CPU_FILE = "cpu_manager_state"
MEMORY_FILE = "memory_manager_state"
_KUBELET_FOLDER = "/var/lib/kubelet"


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


def policies(root: Path, processes: Iterable[RunningProcess]) -> KubeletFacts:
    """Return the policies that the node's kubelet has, by its files below ``root``.

    Where its folder is elsewhere, the command line among ``processes`` says so.
    """
    words = " ".join(w for p in processes if p.name == "kubelet" for w in p.arguments)
    given = re.search(r"--root-dir[= ](/\S*)", words)
    folder = given[1] if given else _KUBELET_FOLDER
    unread: list[str] = []
    cpu, memory = (_policy(root, f"{folder}/{name}", unread) for name in (CPU_FILE, MEMORY_FILE))
    return KubeletFacts(folder=folder, cpu_policy=cpu, memory_policy=memory, unread=tuple(unread))


def _policy(root: Path, file: str, unread: list[str]) -> str | None:
    try:
        with (root / file.strip("/")).open(encoding="utf-8") as opened:
            # Mounted as a single file, it stays what it was at that time: the kubelet renames.
            is_replaced = not os.fstat(opened.fileno()).st_nlink
            policy = str(json.load(opened)["policyName"])
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        unread.append(f"{file} ({error.strerror})")
    except (ValueError, KeyError, TypeError):
        unread.append(f"{file} (names no policy)")
    else:
        if not is_replaced:
            return policy
        unread.append(f"{file} (was replaced since it was mounted here: restart this pod)")
    return None
