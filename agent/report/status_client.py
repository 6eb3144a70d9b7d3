"""Asks a running agent for its status, over its local socket."""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agent.errors import EnvironmentProblem, InputError


def ask(path: Path, *, timeout_s: float = 5.0) -> dict[str, Any]:
    """Return the status document of the agent that listens on ``path``.

    Raises `EnvironmentProblem` where nobody does.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            with connection.makefile("rb") as answer:
                document = json.loads(answer.read())
    except (OSError, ValueError) as error:
        raise EnvironmentProblem(
            f"no agent answers on {path}: {error}; is numalet running, with this statusSocket?"
        ) from error
    if not isinstance(document, dict):
        raise EnvironmentProblem(f"{path} answered with something else than a status")
    return document


def find_pod(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the part of a status document that is about ``POD`` or ``NAMESPACE/POD``.

    Raises `InputError` with the pods that there are.
    """
    namespace, _, pod_name = name.rpartition("/")
    wanted = f"{namespace or 'default'}/{pod_name}"
    pods: dict[str, dict[str, Any]] = {f"{p['namespace']}/{p['name']}": p for p in document["pods"]}
    if wanted not in pods:
        known = ", ".join(sorted(pods)) or "none"
        raise InputError(f"the agent knows no pod {wanted}; it knows: {known}")
    return pods[wanted]
