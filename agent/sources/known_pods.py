"""What a watch has told of the pods of a node: raw objects of the API become events."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from agent.core.pods import Pod
from agent.errors import InputError
from agent.ports import InputRejected, PodChanged, PodGone, PodsListed, Post
from agent.sources.pod_model import uid_in

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
        self._ended: set[str] = set()
        """Who is gone though his object stays."""

    def all(self, items: Iterable[Json]) -> None:
        """Tell a complete list; what is not in it is gone."""
        every = {_uid(item): item for item in items}
        alive = {uid: item for uid, item in every.items() if not _is_terminal(item)}
        self._ended = every.keys() - alive.keys()
        for uid in sorted(self._rejected.keys() - alive.keys()):
            self._accept(uid)
        # Where a pod's present state cannot be read, the last readable one stands.
        pods = {uid: self._read(uid, item) or self._pods.get(uid) for uid, item in alive.items()}
        self._pods = {uid: pod for uid, pod in pods.items() if pod is not None}
        unreadable = (uid_in(alive[uid]) for uid, pod in pods.items() if pod is None)
        self._post(PodsListed(tuple(self._pods.values()), frozenset(filter(None, unreadable))))

    def changed(self, item: Json) -> None:
        """Tell a pod's new state; one that has ended is gone, though its object stays."""
        uid = _uid(item)
        if _is_terminal(item):
            self._tell_gone(uid, item)
            self._ended.add(uid)
            return
        if (pod := self._read(uid, item)) is not None:
            self._pods[uid] = pod
            self._post(PodChanged(pod))

    def gone(self, item: Json) -> None:
        """Tell that a pod is no more, also of one that could never be read.

        It may have been placed before this process began.
        """
        uid = _uid(item)
        self._tell_gone(uid, item)
        self._ended.discard(uid)

    def _tell_gone(self, uid: str, item: Json) -> None:
        self._accept(uid)
        pod = self._pods.pop(uid, None)
        known_as = uid_in(item) if pod is None else pod.uid
        if known_as is not None and uid not in self._ended:
            self._post(PodGone(known_as))

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
