"""What a watch has told of the pods of a node: raw objects of the API become events."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from agent.core.pods import Pod
from agent.errors import InputError
from agent.ports import InputRejected, PodChanged, PodGone, PodsListed, Post

Json = Mapping[str, object]

TERMINAL_PHASES = ("Succeeded", "Failed")


class Parse(Protocol):
    """Makes a `Pod` of a raw object; raises `InputError` where that cannot be done."""

    def __call__(self, raw: Json, /, *, where: str) -> Pod:
        """Read ``raw``, which messages call ``where``."""
        ...


class KnownPods:
    """What the consumer has been told of pods, so that it hears each thing once.

    Pods are known by ``metadata.uid``: one that is made again under its old name is another pod.
    """

    def __init__(self, post: Post, parse: Parse) -> None:
        self._post = post
        self._parse = parse
        self._pods: dict[str, Pod] = {}
        self._rejected: dict[str, InputRejected] = {}

    def all(self, items: Iterable[Json]) -> None:
        """Tell a complete list; what is not in it is gone."""
        alive = {_uid(item): item for item in items if not _is_terminal(item)}
        for uid in sorted(self._rejected.keys() - alive.keys()):
            self._accept(uid)
        # Where a pod's present state cannot be read, the last readable one stands.
        pods = {uid: self._read(uid, item) or self._pods.get(uid) for uid, item in alive.items()}
        self._pods = {uid: pod for uid, pod in pods.items() if pod is not None}
        self._post(PodsListed(tuple(self._pods.values())))

    def changed(self, item: Json) -> None:
        """Tell a pod's new state; one that has ended is gone, though its object stays."""
        if _is_terminal(item):
            self.gone(item)
            return
        uid = _uid(item)
        if (pod := self._read(uid, item)) is not None:
            self._pods[uid] = pod
            self._post(PodChanged(pod))

    def gone(self, item: Json) -> None:
        """Tell that a pod is no more, unless it never was."""
        uid = _uid(item)
        self._accept(uid)
        if (pod := self._pods.pop(uid, None)) is not None:
            self._post(PodGone(pod.uid))

    def _read(self, uid: str, item: Json) -> Pod | None:
        where = _where(item)
        try:
            pod = self._parse(item, where=where)
        except InputError as error:
            self._reject(uid, where, str(error).removeprefix(f"{where}: "))
        except Exception as error:  # noqa: BLE001 - one strange pod must not hide all others
            self._reject(uid, where, f"{type(error).__name__}: {error}")
        else:
            self._accept(uid)
            return pod
        return None

    def _reject(self, uid: str, where: str, reason: str) -> None:
        rejection = InputRejected(where, reason)
        if self._rejected.get(uid) != rejection:
            self._rejected[uid] = rejection
            self._post(rejection)

    def _accept(self, uid: str) -> None:
        if (rejection := self._rejected.pop(uid, None)) is not None:
            self._post(InputRejected(rejection.where, ""))


def metadata(item: Json) -> Json:
    """Return the object's metadata; empty where it has none."""
    value = item.get("metadata")
    return value if isinstance(value, dict) else {}


def _where(item: Json) -> str:
    names = metadata(item)
    return f"pod {names.get('namespace', '?')}/{names.get('name', '?')}"


def _uid(item: Json) -> str:
    return str(metadata(item).get("uid") or _where(item))


def _is_terminal(item: Json) -> bool:
    status = item.get("status")
    return isinstance(status, dict) and status.get("phase") in TERMINAL_PHASES
