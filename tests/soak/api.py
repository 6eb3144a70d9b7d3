"""An API server whose pods come and go, and that takes all that an agent may write."""

import json
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.report.api_model import ApiModel, ModelPod
from tests.sources.api_server import Answer, Certificate, Handler, Request, reply
from tests.vm.pod_api import PodApi

PODS = "/api/v1/pods"


class _Handler(Handler):
    """One connection."""

    def do_POST(self) -> None:  # noqa: N802 - the base's name
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert isinstance(self.server, SoakApi)
        kind = self.headers["Content-Type"]
        self.server.written(self.command, self.path, body, kind)(self)

    do_PATCH = do_POST  # noqa: N815 - as above


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How many requests there were: what of events and annotations was said most often of one pod."""

    lists: int
    watches: int
    events: int
    repeated_events: int
    most_events_of_a_pod: int
    annotations: int
    most_annotations_of_a_pod: int
    topologies: int


class SoakApi(PodApi):
    """Tells of its pods, and keeps what is written of them."""

    def __init__(self, tls: Certificate | None = None) -> None:
        super().__init__(tls=tls)
        self.RequestHandlerClass = _Handler
        self._model = ApiModel()
        self._turn_of_writers = threading.Lock()
        self._told: dict[str, dict[str, Any]] = {}

    def put(self, pod: Any) -> None:
        """Add a pod, or say that it changed; what was written of it stays."""
        name = _full_name(pod)
        with self._turn_of_writers:
            known = self._model.pods.setdefault(
                name, ModelPod(pod["metadata"]["uid"], dict(pod["metadata"]["annotations"]))
            )
            self._told[name] = pod = _annotated(pod, known)
            super().put(pod)

    def remove(self, pod: Any) -> None:
        with self._turn_of_writers:
            del self._model.pods[_full_name(pod)]
            super().remove(self._told.pop(_full_name(pod)))

    def next_answer(self, request: Request) -> Answer:
        if request.path == PODS:
            return super().next_answer(request)
        return self._asked("GET", request.path, None, "")

    def written(self, method: str, path: str, body: Any, content_type: str) -> Answer:
        """Return the answer to a write."""
        answer = self._asked(method, path, body, content_type)
        with self._turn_of_writers:
            namespace, _, name = path.partition("/pods/")
            name = f"{namespace.rpartition('/')[2]}/{name}"
            if name in self._told:
                self._told[name] = _annotated(self._told[name], self._model.pods[name])
                super().put(self._told[name])
        return answer

    def traffic(self) -> Traffic:
        """Return what was asked for so far."""
        asked = list(self._model.requests)
        events = Counter(a.body["metadata"]["name"] for a in asked if a.method == "POST")
        of_pods = Counter(a.body["involvedObject"]["uid"] for a in asked if a.method == "POST")
        patches = [a for a in asked if a.method == "PATCH"]
        annotations = Counter(a.body["metadata"]["uid"] for a in patches if "zones" not in a.body)
        return Traffic(
            lists=self.kinds.count("list"),
            watches=self.kinds.count("watch"),
            events=events.total(),
            repeated_events=events.total() - len(events),
            most_events_of_a_pod=max(of_pods.values(), default=0),
            annotations=annotations.total(),
            most_annotations_of_a_pod=max(annotations.values(), default=0),
            topologies=len(patches) - annotations.total(),
        )

    def _asked(self, method: str, path: str, body: Any, content_type: str) -> Answer:
        with self._turn_of_writers:
            answer = self._model.ask(method, path, body, content_type=content_type)
        text = answer.body
        return reply(answer.code, text.encode() if isinstance(text, str) else _plain(text))


def _plain(body: Any) -> dict[str, object]:
    """Return an object without the sets that the model keeps in it."""
    return {key: value for key, value in body.items() if key != "owners"}


def _full_name(pod: Any) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def _annotated(pod: Any, known: ModelPod) -> dict[str, Any]:
    return {**pod, "metadata": {**pod["metadata"], "annotations": dict(known.annotations)}}
