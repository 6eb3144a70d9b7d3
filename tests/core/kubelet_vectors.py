"""The recorded scenarios whose steps carry state files, and how they become our own values."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agent.core.kubelet_files import ContainerIds
from agent.core.pods import PodUID
from tests.conformance.scenario import Json, read_scenarios

FOLDER = Path(__file__).parents[1] / "data" / "conformance"
THEMES = ("checkpoints", "restore_validation", "kep_examples", "feature_gates")


def scenarios() -> Iterator[Json]:
    for theme in THEMES:
        yield from read_scenarios(FOLDER / f"{theme}.jsonl.gz")


@dataclass(frozen=True)
class Restart:
    """A restart as recorded: what the kubelet found, and what came of it."""

    id: str
    machine: Json
    config: Json
    files: dict[str, str | None]
    container_ids: ContainerIds
    expect: Json


def restarts() -> Iterator[Restart]:
    for scenario in scenarios():
        yield from _restarts(scenario)


def _restarts(scenario: Json) -> Iterator[Restart]:
    machine, config = scenario["machine"], scenario["config"]
    files: dict[str, str | None] = scenario["init"].get("files", {})
    ids: dict[str, tuple[PodUID, str]] = {}
    for step in scenario["steps"]:
        if step["op"] == "add":
            pod = step["pod"]
            for container in pod.get("init", []) + pod["containers"]:
                name = container["name"]
                ids[f"cid://{pod['uid']}/{name}"] = (PodUID(pod["uid"]), name)
        if step["op"] == "restart":
            machine, config = step.get("machine", machine), step.get("config", config)
            # an empty text says that the file was deleted
            files = {n: t or None for n, t in {**files, **step.get("files", {})}.items()}
            yield Restart(scenario["id"], machine, config, files, ids, step["expect"])
        files = step["expect"].get("files", files)


def written_by_the_kubelet() -> Iterator[tuple[str, str, str, bool]]:
    """Yield id, name, text and gate of every different file that nobody tampered with."""
    seen = set()
    for scenario in scenarios():
        gate = scenario["config"].get("feature_gates", {}).get("PodLevelResourceManagers", True)
        steps = scenario["steps"]
        planted = {text for step in steps for text in step.get("files", {}).values()}
        for expect in (scenario["init"], *(step["expect"] for step in steps)):
            for name, text in expect.get("files", {}).items():
                if text not in planted and (text, gate) not in seen:
                    seen.add((text, gate))
                    yield scenario["id"], name, text, gate
