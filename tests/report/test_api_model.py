"""The model answers as a real kube-apiserver v1.36.2 did; skipped without the recordings."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agent.ports import ApiAnswer
from agent.report.outbox import causes_of
from tests.replay.recording import API

from .api_model import NODE, ApiModel, ModelPod

BURSTABLE = "871fcbe5-5592-4654-96d7-bc74370a8533"
EVICT_1 = "3f6555fe-387a-47de-8e73-1d0a6484b460"


def model(**settings: Any) -> ApiModel:
    api = ApiModel(**settings)
    api.pods["numalet-rec/burstable"] = ModelPod(BURSTABLE)
    api.pods["numalet-rec/evict-1"] = ModelPod(EVICT_1)
    return api


def replay(api: ApiModel, name: str) -> None:
    """Ask what was asked in a recording, and compare status, reason, causes, wait and kind of body."""
    exchange = json.loads((API / f"{name}.json").read_text())
    request, response = exchange["request"], exchange["response"]
    content_type = request["headers"].get("Content-Type", "application/json")
    answer = api.ask(
        request["method"], request["path"], request.get("body"), content_type=content_type
    )
    recorded = ApiAnswer(
        code=response["status"],
        body=response["body"],
        wait_s=float(dict(response["headers"]).get("Retry-After", 0)),
    )
    assert (name, essence(answer)) == (name, essence(recorded))


def essence(answer: ApiAnswer) -> tuple[object, ...]:
    if isinstance(answer.body, str):
        return answer.code, answer.body, answer.wait_s
    reason = answer.body.get("reason", "") if answer.code >= 400 else answer.body["kind"]
    causes = [
        cause["reason"] for cause in causes_of(answer) if "DisruptionBudget" in cause.values()
    ]
    return answer.code, reason, causes, answer.wait_s, zone_managers(answer.body)


def zone_managers(body: Mapping[str, Any]) -> list[str]:
    fields = body.get("metadata", {}).get("managedFields", [])
    return sorted({entry["manager"] for entry in fields if "f:zones" in entry["fieldsV1"]})


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["get.node"]),
        ({}, ["event.core.full", "event.core.other-namespace"]),
        ({}, ["annotation.merge", "annotation.remove", "annotation.wrong-uid"]),
        ({"has_crd": False}, ["404.nrt-no-crd", "404.nrt-no-crd.apply"]),
        ({}, ["nrt.apply.no-manager"]),
        ({}, ["eviction.404", "eviction.409-uid", "eviction.201", "eviction.again-201"]),
        ({"disruptions": 1}, ["eviction.409-uid", "eviction.429-pdb"]),
        ({"disruptions": 1, "is_budget_known": False}, ["eviction.429-pdb-not-observed"]),
        ({"disruptions": 0}, ["eviction.429-pdb"]),
        ({"budgets": 2}, ["eviction.500-two-pdbs"]),
    ],
)
def test_single_requests_are_answered_alike(settings: dict[str, Any], names: list[str]) -> None:
    api = model(**settings)
    for name in names:
        replay(api, name)


def test_a_life_of_server_side_apply_is_answered_alike() -> None:
    api = model()
    for name in ("create", "same", "change", "conflict", "force", "conflict-back"):
        replay(api, f"nrt.apply.{name}")
    replay(api, "nrt.get")
    assert api.topology is not None
    assert api.topology["metadata"]["name"] == NODE
