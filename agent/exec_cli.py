"""The command ``numalet exec``: start a program inside a container's cgroup, on a single host.

Under systemd the program becomes a scope of its own, which nothing that happens to the agent
touches.  systemd resets what it was not told when a scope starts below slices that it does not know
yet (seen with systemd 252: ``cpuset.cpus`` of an unpopulated slice and of the scope are emptied,
``cpu.max``, ``cpu.weight`` and ``memory.max`` get their defaults), and later the last three at each
daemon-reload.  So it is told all that the agent decided: the program is confined before its first
instruction, and the agent repairs the slices above.
"""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from agent.cli_options import ConfigOption, SocketOption
from agent.config import load
from agent.errors import EnvironmentProblem, InputError
from agent.node.cgroup_layout import systemd_runs
from agent.report.status_client import ask, find_pod

Json = dict[str, Any]

_SCOPE = ".scope"
_PROCS = "cgroup.procs"

PATIENCE_S = 15.0
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A container's cgroup, and what its files should say, in the kernel's words."""

    name: str
    cgroup: Path
    cpus: str
    mems: str
    cpu_max: str
    cpu_weight: int
    memory_max: str

    @property
    def pod(self) -> str:
        """Its pod's namespace and name."""
        return self.name.rpartition("/")[0]


def exec_(
    container: Annotated[str, typer.Argument(metavar="[NAMESPACE/]POD/CONTAINER")],
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND...")],
    socket: SocketOption = None,
    config: ConfigOption = None,
) -> None:
    """Start a program inside a container's cgroup, on a single host; end with its status.

    Under systemd it becomes a scope of its own: restarts of the agent do not touch it.
    """
    if os.geteuid() != 0:
        raise EnvironmentProblem("only root can start programs in cgroups: run this as root")
    where = socket or load(config).status_socket
    start(confined(lambda: ask(where), container), command, by_systemd=systemd_runs())


def confined(read: Callable[[], Json], name: str) -> Target:
    """Return where a program of a container belongs, once the agent has confined the pod.

    Before that others may run on its CPUs.  systemd takes a pod's cgroup away with the last program in
    it; the agent makes it again soon, and then only its next status says whether it is confined.
    Raises what `find_target` does, and `EnvironmentProblem` where it takes too long.
    """
    until_s, was_missing_at = time.monotonic() + PATIENCE_S, None
    while True:
        document = read()
        target = find_target(document, name)
        if not target.cgroup.parent.is_dir():
            was_missing_at = document["takenAt"]
        elif document["takenAt"] != was_missing_at and target.pod not in document["unenforced"]:
            return target
        if time.monotonic() > until_s:
            raise EnvironmentProblem(
                f"{target.cgroup.parent} is not confined yet: others may run on the CPUs of the pod",
                cure="numalet status says what is in the way; try again after that",
            )
        time.sleep(_POLL_S)


def find_target(document: Json, name: str) -> Target:
    """Return where a program of a container belongs, by the agent's status.

    Raises `InputError` or `EnvironmentProblem` that say why it cannot be started.
    """
    _check_mode(document)
    pod_name, slash, container_name = name.rpartition("/")
    if not slash or not pod_name or not container_name:
        message = "name a container: POD/CONTAINER, or NAMESPACE/POD/CONTAINER"
        raise InputError(message, where=name)
    pod = find_pod(document, pod_name)
    full_name = f"{pod['namespace']}/{pod['name']}"
    if not pod["admitted"]:
        raise InputError(
            f"pod {full_name} was rejected, and has no CPUs for it ({pod['reason']}:"
            f" {pod['message']})"
        )
    places = {c["name"]: c for c in pod["containers"] if "cgroup" in c}
    if container_name not in places:
        known = ", ".join(places) or "none"
        raise InputError(f"pod {full_name} has no container {container_name}; it has: {known}")
    container = places[container_name]
    return Target(
        name=f"{full_name}/{container_name}",
        cgroup=Path(document["cgroupRoot"], container["cgroup"].lstrip("/")),
        cpus=container["cpus"],
        mems=container["mems"],
        cpu_max=container["cpuMax"],
        cpu_weight=container["cpuWeight"],
        memory_max=container["memoryMax"],
    )


def _check_mode(document: Json) -> None:
    if document["mode"] == "simulated":
        raise EnvironmentProblem("the agent simulates a machine: no program can run in its cgroups")
    if document["mode"] != "host":
        raise EnvironmentProblem(
            "the agent serves Kubernetes, whose kubelet starts the programs",
            cure="use kubectl exec",
        )
    if document["observe"]:
        raise EnvironmentProblem(
            "the agent only observes: it has no cgroups for pods", cure="run it without observe"
        )


def start(target: Target, command: list[str], *, by_systemd: bool) -> NoReturn:
    """Become the program; does not return.

    Raises `InputError` where there is no such program, `EnvironmentProblem` where the cgroup is
    not there or, of a scope, in use.
    """
    if shutil.which(command[0]) is None:
        raise InputError(f"{command[0]}: there is no such program")
    if by_systemd and target.cgroup.name.endswith(_SCOPE):
        _check_unused(target)
        command = scope_command(target, command)
    else:
        _join(target)
    os.execvp(command[0], command)  # noqa: S606 - what the user asked for, without a shell


def scope_command(target: Target, command: list[str]) -> list[str]:
    """Return the command line that makes systemd run a command as the container's scope."""
    properties = [
        "Delegate=yes",
        "TasksMax=infinity",
        f"AllowedCPUs={target.cpus}",
        f"CPUWeight={target.cpu_weight}",
        f"MemoryMax={target.memory_max.replace('max', 'infinity')}",
    ]
    if target.mems:
        properties.append(f"AllowedMemoryNodes={target.mems}")
    quota, period = target.cpu_max.split()
    if quota != "max":
        properties.append(f"CPUQuota={int(quota) / int(period):.1%}")
    return [
        "systemd-run",
        "--scope",
        "--quiet",
        "--collect",
        f"--description=numalet container {target.name}",
        f"--unit={target.cgroup.name}",
        f"--slice={target.cgroup.parent.name}",
        *(f"--property={one}" for one in properties),
        "--",
        *command,
    ]


def _check_unused(target: Target) -> None:
    """Make sure that the scope is not there yet: it can be started only once at a time."""
    try:
        pids = (target.cgroup / _PROCS).read_text(encoding="ascii").split()
    except OSError:  # not there, which systemd takes care of
        return
    if pids:
        raise EnvironmentProblem(
            f"a program runs in {target.name} already (pid {', '.join(pids)})", cure="end it first"
        )


def _join(target: Target) -> None:
    try:
        descriptor = os.open(target.cgroup / _PROCS, os.O_WRONLY)
        try:
            os.write(descriptor, str(os.getpid()).encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot move into {target.cgroup}: {error.strerror}",
            cure="see what `numalet status` says of it",
        ) from error
