"""Pods by number: of every kind that is told apart, each with four containers."""

import copy
import gzip
import json
import uuid
from pathlib import Path
from typing import Any

Raw = dict[str, Any]

CONTAINERS = 4
RECORDING = Path(__file__).parents[1] / "data/recordings/static.jsonl.gz"
_EVERY = 50
_OWN, _ANNOTATED = 3, 28
"""Of so many pods these two want CPUs of their own: more than there are, so that some are rejected."""


def recorded() -> Raw:
    """Return the largest pod that a real API server told of: what an object is like in full.

    Who wrote which field is not in the recording; it is as long as the kubelet's part of it.
    """
    with gzip.open(RECORDING, "rt") as lines:
        events = (json.loads(line) for line in lines)
        pods = [event["event"]["object"] for event in events if event["ev"] == "watch"]
    pod: Raw = max(pods, key=lambda pod: len(json.dumps(pod)))
    del pod["metadata"]["deletionTimestamp"], pod["metadata"]["deletionGracePeriodSeconds"]
    del pod["spec"]["resources"]
    fields: Raw = {f'f:key{{"type":"Condition{i}"}}': {"f:status": {}, ".": {}} for i in range(40)}
    pod["metadata"]["managedFields"] = [{"manager": "kubelet", "fieldsV1": fields}]
    return pod


class Pods:
    """Makes them, all in the form of a recorded one."""

    def __init__(self) -> None:
        self._form = recorded()
        spec, status = self._form["spec"], self._form["status"]
        self._container = spec["containers"][0]
        self._status = status["containerStatuses"][0]
        for part, key in ((spec, "initContainers"), (status, "initContainerStatuses")):
            del part[key]

    def pod(self, number: int) -> Raw:
        """Return the object of a pod that is pending."""
        raw = copy.deepcopy(self._form)
        qos, annotations, resources = _kind(number)
        raw["metadata"] |= {
            "name": f"pod-{number}",
            "uid": str(uuid.UUID(int=number)),
            "annotations": annotations,
        }
        raw["spec"]["containers"] = [
            {**self._container, "name": f"container-{i}", "resources": one}
            for i, one in enumerate(resources)
        ]
        raw["status"] |= {"phase": "Pending", "qosClass": qos, "containerStatuses": []}
        return raw

    def started(self, raw: Raw, ids: dict[str, str]) -> Raw:
        """Return the object once its containers run; ``ids`` are theirs by name."""
        statuses = [
            {
                **self._status,
                "name": container["name"],
                "containerID": f"containerd://{ids[container['name']]}",
                "allocatedResources": container["resources"].get("requests", {}),
                "resources": container["resources"],
            }
            for container in raw["spec"]["containers"]
        ]
        return {
            **raw,
            "status": {**raw["status"], "phase": "Running", "containerStatuses": statuses},
        }


def _kind(number: int) -> tuple[str, dict[str, str], list[Raw]]:
    """Return a pod's class, its annotations, and the resources of its containers."""
    small, none = _equal("10m"), Raw()
    match number % _EVERY:
        case n if n == _OWN:
            return "Guaranteed", {}, [_equal("1"), small, small, small]
        case n if n == _ANNOTATED:
            budget = {"numalet.io/resources": '{"cpu": "2", "memory": "4Mi"}'}
            shares: Raw = {"requests": {"cpu": "1", "memory": "1Mi"}}
            return "Burstable", budget, [_equal("1"), shares, _request("1Mi"), _request("1Mi")]
        case n if n % 5 == 0:
            return "Guaranteed", {}, [small] * CONTAINERS
        case n if n % 2:
            return "Burstable", {}, [{"requests": {"cpu": "10m"}}, none, none, none]
        case _:
            return "BestEffort", {}, [none] * CONTAINERS


def _equal(cpu: str) -> Raw:
    amounts = {"cpu": cpu, "memory": "1Mi"}
    return {"requests": amounts, "limits": amounts}


def _request(memory: str) -> Raw:
    return {"requests": {"memory": memory}}
