"""Pods from manifest files: read once, or a folder that is watched while the agent runs.

Accepted are Pod, List, and the pod template of a workload.  A workload stands for one pod, named
after it: how many of its replicas a node gets is a scheduler's decision, and there is none here.
"""

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from agent.core.pods import Pod, PodUID
from agent.documents import FieldError, FieldPath, Problem, parse, read_stream, read_text
from agent.errors import InputError
from agent.ports import Event, InputRejected, PodChanged, PodGone, PodsListed, Post, SourceState
from agent.sources.api_rules import apply_defaults, unknown_resources, validate
from agent.sources.pod_model import parse_pod

SUFFIXES = (".yaml", ".yml", ".json")

_TEMPLATE: FieldPath = ("spec", "template")
_KINDS: Mapping[str, tuple[str, FieldPath]] = {
    "Pod": ("v1", ()),
    "Deployment": ("apps/v1", _TEMPLATE),
    "StatefulSet": ("apps/v1", _TEMPLATE),
    "DaemonSet": ("apps/v1", _TEMPLATE),
    "ReplicaSet": ("apps/v1", _TEMPLATE),
    "Job": ("batch/v1", _TEMPLATE),
    "CronJob": ("batch/v1", ("spec", "jobTemplate", *_TEMPLATE)),
}
_FROM_THE_WORKLOAD = (("metadata", "name"), ("metadata", "namespace"))

StdIn = Literal["-"]
Signature = tuple[int, int, int, int]
Placed = tuple[str, Pod]
"""A pod after its place (``db.yaml:12``)."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file says: its pods and what is wrong, each with its place."""

    pods: tuple[Placed, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()


def read_manifests(paths: Iterable[Path | StdIn]) -> tuple[list[Pod], list[InputRejected]]:
    """Return the pods of files, of folders and of standard input, and what could not be used.

    Of several pods with the same namespace and name the first one counts: paths are taken in their
    order, the files of a folder in the order of their names.
    """
    placed, problems = merge(manifest for path in paths for manifest in _read(path))
    pods = [pod for _, pod in placed]
    return pods, [InputRejected(where, reason) for where, reason in problems.items()]


def merge(
    manifests: Iterable[Manifest], former: Mapping[PodUID, Placed] = MappingProxyType({})
) -> tuple[list[Placed], dict[str, str]]:
    """Return all pods, and what is wrong by its place; a pod that is there already is wrong.

    Of pods with one name or UID the one that was there before stays: that in the file in which
    ``former`` has it, else that which asks for the same as before.  Else the first one counts.
    """
    manifests = list(manifests)
    found = [placed for manifest in manifests for placed in manifest.pods]
    wrong = [problem for manifest in manifests for problem in manifest.problems]
    taken: dict[str, Placed] = {}
    twice: set[int] = set()
    for i in sorted(range(len(found)), key=lambda i: _newness(found[i], former)):
        where, pod = found[i]
        other = taken.get(pod.full_name) or taken.get(pod.uid)
        if other is None:
            taken |= {pod.full_name: found[i], pod.uid: found[i]}
        else:
            twice.add(i)
            wrong.append((where, _is_there_already(pod, *other)))
    problems: dict[str, str] = {}
    for where, reason in wrong:
        problems[where] = f"{problems[where]}; {reason}" if where in problems else reason
    return [placed for i, placed in enumerate(found) if i not in twice], problems


def _newness(placed: Placed, former: Mapping[PodUID, Placed]) -> tuple[bool, bool]:
    """Return what sorts newcomers behind those who were there before."""
    where, pod = placed
    if pod.uid not in former:
        return True, True
    place, before = former[pod.uid]
    return _file(place) != _file(where), not _asks_the_same(before, pod)


def _file(place: str) -> str:
    return place.rpartition(":")[0]


def _asks_the_same(one: Pod, other: Pod) -> bool:
    # A checkpoint leaves out labels and most annotations.
    return one is other or _lean(one) == _lean(other)


def _lean(pod: Pod) -> Pod:
    return replace(pod, labels={}, annotations={})


def _is_there_already(pod: Pod, where: str, other: Pod) -> str:
    if pod.full_name == other.full_name:
        return (
            f"pod {pod.full_name} stands in {where} already, and that one stays:"
            " rename or remove one of the two"
        )
    return (
        f"the uid {pod.uid!r} of pod {pod.full_name} is that of pod {other.full_name} in {where}, and"
        " that one stays: give this one a metadata.uid of its own, or none, and it gets one"
    )


def _read(path: Path | StdIn) -> Iterator[Manifest]:
    if isinstance(path, str):
        yield _read_stdin()
        return
    try:
        files = manifest_files(path) if path.is_dir() else [path]
    except OSError as error:
        yield _failed(InputError(f"cannot be read: {error.strerror}", where=str(path)))
        return
    yield from map(read_file, files)


def _read_stdin() -> Manifest:
    if sys.stdin is None:
        return _failed(InputError("is closed", where="stdin"))
    try:
        return parse_manifest(read_stream(sys.stdin.buffer, name="stdin"), name="stdin")
    except InputError as error:
        return _failed(error)


def read_file(path: Path) -> Manifest:
    """Return what a file says; where it cannot be read, that is what is wrong with it."""
    try:
        return parse_manifest(read_text(path), name=str(path))
    except InputError as error:
        return _failed(error)


def _failed(error: InputError) -> Manifest:
    return Manifest(problems=((error.where, error.reason),))


def manifest_files(folder: Path) -> list[Path]:
    """Return the manifest files directly in a folder, sorted by name.

    Hidden files are left out, as the kubelet does with its static pods: editors keep copies there.
    Raises `OSError` where the folder cannot be read.
    """
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def parse_manifest(text: str, *, name: str) -> Manifest:
    """Return what a text says; raises `InputError` where it is no YAML or JSON at all.

    A text of no bytes is refused: it is a file that somebody has only begun to write.
    """
    if not text:
        raise InputError("is empty: remove the file to remove its pods", where=name)
    pods: list[Placed] = []
    problems: list[tuple[str, str]] = []
    for document in parse(text, name=name):
        for path, raw in _objects(document.data, ()):
            result = _pod_of(raw)
            if isinstance(result, Pod):
                pods.append((document.where(path), result))
            else:
                problems += [(document.where((*path, *p.path)), str(p)) for p in result]
    return Manifest(tuple(pods), tuple(problems))


def _objects(data: object, path: FieldPath) -> Iterator[tuple[FieldPath, object]]:
    """Yield the objects of a document; those in a List one by one."""
    if not isinstance(data, Mapping) or data.get("kind") != "List":
        yield path, data
        return
    items = data.get("items") or []
    for index, item in enumerate(items if isinstance(items, list) else [items]):
        yield from _objects(item, (*path, "items", index))


def _pod_of(raw: object) -> Pod | list[Problem]:
    """Return the pod of one object, or everything that is wrong with it."""
    try:
        at, pod_object = _pod_object(raw)
    except FieldError as error:
        return [error.problem]
    result = _checked_pod(pod_object)
    if isinstance(result, Pod) or not at:
        return result
    return [
        p if p.path[:2] in _FROM_THE_WORKLOAD else Problem((*at, *p.path), p.message)
        for p in result
    ]


def _pod_object(raw: object) -> tuple[FieldPath, Mapping[str, object]]:
    """Return the Pod of an object, and where in the object it stands."""
    if not isinstance(raw, Mapping):
        raise FieldError(Problem((), "is not a Kubernetes object: it has no apiVersion and kind"))
    kind, version = raw.get("kind"), raw.get("apiVersion")
    if not isinstance(kind, str) or kind not in _KINDS:
        accepted = ", ".join(_KINDS) + " or List"
        raise FieldError(Problem(("kind",), f"{kind!r} describes no pod: write {accepted}"))
    expected, at = _KINDS[kind]
    if version != expected:
        problem = f"{version!r} is not possible for a {kind}: write {expected}"
        raise FieldError(Problem(("apiVersion",), problem))
    if not at:
        return at, raw
    template: object = raw
    for step in at:
        template = template.get(step) if isinstance(template, Mapping) else None
    if not isinstance(template, Mapping):
        raise FieldError(Problem(at, "is missing"))
    return at, {**template, "metadata": _metadata(raw, template)}


def _metadata(workload: Mapping[str, object], template: Mapping[str, object]) -> dict[str, object]:
    """Return the template's metadata with the workload's name and namespace."""
    inner = _members(template.get("metadata"), "labels", "annotations")
    return inner | _members(workload.get("metadata"), "name", "namespace")


def _members(data: object, *names: str) -> dict[str, object]:
    return {n: data[n] for n in names if n in data} if isinstance(data, Mapping) else {}


def _checked_pod(raw: Mapping[str, object]) -> Pod | list[Problem]:
    try:
        # A status, as in an object that was copied from a cluster, is not that of this host's pod.
        pod = apply_defaults(parse_pod({**raw, "status": None}, where=""))
    except FieldError as error:
        return [error.problem]
    spec = raw["spec"]
    assert isinstance(spec, Mapping)
    return [*unknown_resources(spec), *validate(pod)] or pod


class ManifestFolder:
    """A folder of manifests as a source: edits, new files, renames and removals become events.

    A change counts once two looks in a row see the same file: nobody's half-written file is read,
    and an editor that moves the old file away first removes no pod.  As long as something in a
    file is wrong, none of the file's former pods goes; as long as the folder cannot be read, no
    pod at all does.  Nor does a file with the name or UID of a pod take its place: that pod stays,
    and the newcomer is wrong.  ``running`` are the pods of before this start, which stay as long
    as some file asks for the same; of files that all ask for something else the first one counts.
    """

    def __init__(
        self,
        folder: Path,
        post: Post,
        *,
        running: Mapping[PodUID, Pod] = MappingProxyType({}),
        interval_s: float = 0.25,
    ) -> None:
        self._folder = folder
        self._post = post
        self._interval_s = interval_s
        self._seen: dict[Path, Signature] = {}
        self._taken: dict[Path, tuple[Signature, Manifest]] = {}
        self._placed: dict[PodUID, Placed] = {uid: ("", pod) for uid, pod in running.items()}
        self._pods: dict[PodUID, Pod] | None = None
        self._problems: dict[str, str] = {}
        self._failure = ""
        self._incomplete = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="manifests", daemon=True)

    def start(self) -> None:
        """Begin to look, in a thread; the first event is `PodsListed`."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; it takes no longer than a look."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=1)

    def look(self) -> None:
        """Look at the folder once, and post what has changed since the last look."""
        try:
            signatures = _signatures(self._folder)
        except OSError as error:
            self._report(f"cannot read {self._folder}: {error.strerror}; its pods are kept")
            return
        self._report("")
        for path in sorted({*signatures, *self._taken}):
            self._take(path, signatures.get(path))
        self._seen = signatures
        self._publish()

    def _run(self) -> None:
        self._look_on()
        while not self._stop.wait(self._interval_s):
            self._look_on()

    def _look_on(self) -> None:
        """Look, whatever happens: a mistake of ours must be told, and must not end the source."""
        try:
            self.look()
        except Exception as error:  # noqa: BLE001 - see above
            self._report(f"cannot read {self._folder}: {error!r}; its pods are kept: report this")

    def _report(self, failure: str) -> None:
        if failure != self._failure:
            self._failure = failure
            self._post(SourceState(not failure, failure or f"reading {self._folder} again"))

    def _take(self, path: Path, signature: Signature | None) -> None:
        """Read a file that is new or another than before, or drop one that is gone."""
        taken = self._taken.get(path)
        is_settled = self._pods is None or self._seen.get(path) == signature
        if not is_settled or signature == (taken[0] if taken else None):
            return
        if signature is None:
            del self._taken[path]
            return
        manifest = read_file(path)
        if taken and manifest.problems:
            manifest = _with_former_pods(manifest, taken[1])
        self._taken[path] = (signature, manifest)

    def _publish(self) -> None:
        manifests = (self._taken[path][1] for path in sorted(self._taken))
        placed, problems = merge(manifests, self._placed)
        pods = tuple(pod for _, pod in placed)
        self._placed = {pod.uid: (where, pod) for where, pod in placed}
        former, self._pods = self._pods, {pod.uid: pod for pod in pods}
        if former is None:
            self._report_problems(problems)
            self._incomplete = bool(problems)
            self._post(PodsListed(pods, None if problems else frozenset()))
            return
        for event in _changes(former, self._pods):
            self._post(event)
        self._report_problems(problems)
        if self._incomplete and not problems:
            # Whom only the files with mistakes could have held is known to be gone only now.
            self._incomplete = False
            self._post(PodsListed(pods))

    def _report_problems(self, problems: dict[str, str]) -> None:
        for where in self._problems.keys() - problems.keys():
            self._post(InputRejected(where, ""))
        for where, reason in problems.items():
            if self._problems.get(where) != reason:
                self._post(InputRejected(where, reason))
        self._problems = problems


def _signatures(folder: Path) -> dict[Path, Signature]:
    found: dict[Path, Signature] = {}
    for path in manifest_files(folder):
        with contextlib.suppress(FileNotFoundError):  # gone since the folder was listed
            stat = path.stat()
            found[path] = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino)
    return found


def _with_former_pods(manifest: Manifest, former: Manifest) -> Manifest:
    present = {pod.full_name for _, pod in manifest.pods}
    kept = tuple((where, pod) for where, pod in former.pods if pod.full_name not in present)
    return Manifest(manifest.pods + kept, manifest.problems)


def _changes(old: Mapping[PodUID, Pod], new: Mapping[PodUID, Pod]) -> Iterator[Event]:
    """Yield what turns the old pods into the new: what goes first, so that it makes room."""
    yield from (PodGone(uid) for uid in old if uid not in new)
    yield from (PodChanged(pod) for uid, pod in new.items() if old.get(uid) != pod)
