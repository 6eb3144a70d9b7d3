"""Recorded days of real nodes, one line for each thing that happened; see tests/data/recordings."""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agent.core.cgroups import CgroupPath
from agent.core.pods import PodUID
from agent.node.cgroup_layout import container_id

FOLDER = Path(__file__).resolve().parents[1] / "data/recordings"
API = FOLDER / "api"
KUBELET_CONFIG = FOLDER / "kubelet-config.json"

RUNS = ("none", "static", "static-restart", "static-best-effort", "cgroupfs")

Line = Mapping[str, Any]
"""``t`` in seconds, ``ev`` as in the README there, and what belongs to that."""

Names = Mapping[str, tuple[PodUID, str | None]]
"""By container id: the UID as the kubelet knows the pod, and the container, None for the sandbox."""

_STATUSES = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
_CRI = "io.kubernetes.cri."


def day(run: str) -> list[Line]:
    """Return all lines of a day in the order in which they were seen."""
    with gzip.open(FOLDER / f"{run}.jsonl.gz", "rt") as file:
        return [json.loads(text) for text in file]


def names(lines: Iterable[Line]) -> Names:
    """Return who is who, as the recorded bundles say.

    On the day `none` no bundle was recorded: there the statuses tell the names, and the path the
    UID; a container that no status names is a sandbox.
    """
    lines = list(lines)
    by_status = dict(_named_by_status(lines))
    found = {}
    for line in lines:
        path = CgroupPath(line.get("path", ""))
        if line["ev"] != "mkdir" or (id_ := container_id(path)) is None:
            continue
        told = line.get("bundle_config_annotations")
        if told:
            found[id_] = PodUID(told[f"{_CRI}sandbox-uid"]), told.get(f"{_CRI}container-name")
        else:
            found[id_] = _uid(path.parent), by_status.get(id_)
    return found


def annotations(names: Names, container_id: str) -> dict[str, str]:
    """Return what containerd writes into a bundle, as far as it names the container."""
    uid, name = names[container_id]
    named = {} if name is None else {f"{_CRI}container-name": name}
    kind = "sandbox" if name is None else "container"
    return {f"{_CRI}container-type": kind, f"{_CRI}sandbox-uid": uid, **named}


def _uid(pod: CgroupPath) -> PodUID:
    return PodUID(pod.name.removesuffix(".slice").rpartition("pod")[2].replace("_", "-"))


def _named_by_status(lines: Iterable[Line]) -> Iterator[tuple[str, str]]:
    for line in lines:
        status = line["event"]["object"]["status"] if line["ev"] == "watch" else {}
        for one in (one for kind in _STATUSES for one in status.get(kind, ())):
            yield one.get("containerID", "").removeprefix("containerd://"), one["name"]
