"""A `PodWatch` between a scripted API server and a queue, with time in the test's hand."""

import json
import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from agent.core.pods import Pod, PodUID
from agent.errors import InputError
from agent.ports import Event, PodChanged, SourceState
from agent.sources.api_access import load_client
from agent.sources.known_pods import Json, Parse
from agent.sources.kubernetes import PodWatch, WatchSettings

from .api_server import Answer, Certificate, ScriptedApiServer, line

NODE = "node-a"
WELL = SourceState(healthy=True, detail="watching the pods of node node-a")
PATIENCE_S = 20.0


@dataclass
class FakeTime:
    """A clock that moves with every wait, and by ``step_s`` with every look."""

    step_s: float = 0.0
    monotonic: float = 1000.0
    waits: list[float] = field(default_factory=list)
    on_wait: Callable[[], object] = lambda: None

    def now_s(self) -> float:
        return 1_796_040_000.0 + self.monotonic

    def monotonic_s(self) -> float:
        self.monotonic += self.step_s
        return self.monotonic

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.monotonic += seconds
        self.on_wait()


def highest(_low: float, high: float) -> float:
    return high


def raw_pod(name: str, uid: str = "", *, version: str = "101", **more: str) -> dict[str, object]:
    """Return a pod as the API writes it; ``phase=`` and ``broken=`` (a label) may be given."""
    labels = {key: value for key, value in more.items() if key != "phase"}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-{name}",
            "resourceVersion": version,
            "labels": labels,
        },
        "spec": {},
        "status": {"phase": more.get("phase", "Running")},
    }


def parse(raw: Json, /, *, where: str) -> Pod:
    """Read what `raw_pod` makes."""
    metadata = cast("dict[str, str]", raw["metadata"])
    labels = cast("dict[str, str]", metadata["labels"])
    if "broken" in labels:
        raise InputError(f"spec.containers[0]: {labels['broken']}", where=where)
    return Pod(
        uid=PodUID(metadata["uid"]),
        name=metadata["name"],
        namespace=metadata["namespace"],
        labels=labels,
    )


def pod(name: str, uid: str = "", **labels: str) -> Pod:
    """Return what `parse` makes of `raw_pod` with the same arguments."""
    return parse(raw_pod(name, uid, **labels), where="")


LAST = line("ADDED", raw_pod("last", version="999"))
"""The line that ends a script: what was posted before it is all that was posted."""


class Rig:
    """Starts and ends the two."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.time = FakeTime()
        self.user = {"token": "secret"}
        self.parse: Parse = parse
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._watches: list[PodWatch] = []
        self._servers: list[ScriptedApiServer] = []

    @property
    def watch(self) -> PodWatch:
        return self._watches[-1]

    @property
    def server(self) -> ScriptedApiServer:
        return self._servers[-1]

    def serve(
        self, *script: Answer, settings: WatchSettings | None = None, tls: Certificate | None = None
    ) -> None:
        """Start a server with this script, and a watch of it."""
        self.start_server(*script, tls=tls)
        self.start_watch(settings, ca=tls.certificate if tls else None)

    def start_server(
        self, *script: Answer, tls: Certificate | None = None, port: int = 0
    ) -> ScriptedApiServer:
        server = ScriptedApiServer(*script, tls=tls, port=port)
        server.start()
        self._servers.append(server)
        return server

    def start_watch(
        self,
        settings: WatchSettings | None = None,
        *,
        ca: Path | None = None,
        real_waits: bool = False,
    ) -> None:
        watch = PodWatch(
            api=load_client(
                self.kubeconfig(self.server.url, ca), monotonic_s=self.time.monotonic_s
            ),
            node_name=NODE,
            post=self.events.put,
            parse=self.parse,
            clock=self.time,
            settings=settings or WatchSettings(),
            wait=None if real_waits else self.time.wait,
            uniform=highest,
        )
        self._watches.append(watch)
        watch.start()

    def kubeconfig(self, url: str, ca: Path | None = None) -> Path:
        """Write a kubeconfig (JSON is YAML) and return its path."""
        cluster = {"server": url} | ({"certificate-authority": str(ca)} if ca else {})
        config = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": self.user}],
        }
        path = self.folder / "kubeconfig"
        path.write_text(json.dumps(config))
        return path

    def take(self, count: int) -> list[Event]:
        """Return the next events, as they come."""
        return [self.events.get(timeout=PATIENCE_S) for _ in range(count)]

    def until_last(self) -> list[Event]:
        """Return all events up to the one that `LAST` makes."""
        end = PodChanged(pod("last"))
        return list(iter(lambda: self.events.get(timeout=PATIENCE_S), end))

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        for server in self._servers:
            server.close()
        for watch in self._watches:  # one that waited for an answer to begin is free only now
            watch.close()
