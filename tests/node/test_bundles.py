import json
import os
import resource
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.pods import PodUID
from agent.node.bundles import KNOWN_FOLDERS, BundleFolder, BundleName, Bundles, Runtime
from tests.scratch import scratch_folder

RECORDED = Path(__file__).parents[1] / "data" / "runtime"
ID, SANDBOX_ID, OTHER_ID = "f1f5" * 16, "08b0" * 16, "ab" * 32
UID = PodUID("ee08ee4c-3de0-403a-a21c-8432c97be5fd")
FILES: Mapping[Runtime, str] = {
    "containerd": "config.json",
    "cri-o": "userdata/config.json",
    "docker": "config.v2.json",
}
ANNOTATIONS: Mapping[Runtime, dict[str, str]] = {
    "containerd": {
        "io.kubernetes.cri.container-name": "database",
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.sandbox-id": SANDBOX_ID,
        "io.kubernetes.cri.sandbox-uid": UID,
    },
    "cri-o": {
        "io.kubernetes.container.name": "database",
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.Name": f"k8s_database_db_default_{UID}_0",
        "io.kubernetes.cri-o.SandboxID": SANDBOX_ID,
        "io.kubernetes.pod.uid": UID,
    },
    "docker": {
        "io.kubernetes.container.name": "database",
        "io.kubernetes.docker.type": "container",
        "io.kubernetes.pod.uid": UID,
        "io.kubernetes.sandbox.id": SANDBOX_ID,
    },
}
SANDBOX: Mapping[Runtime, dict[str, str]] = {
    "containerd": {
        "io.kubernetes.cri.container-type": "sandbox",
        "io.kubernetes.cri.sandbox-id": SANDBOX_ID,
        "io.kubernetes.cri.sandbox-uid": UID,
    },
    "cri-o": {
        "io.kubernetes.container.name": "POD",
        "io.kubernetes.cri-o.ContainerName": f"k8s_POD_db_default_{UID}_0",
        "io.kubernetes.cri-o.ContainerType": "sandbox",
        "io.kubernetes.cri-o.RuntimeHandler": "kata",
        "io.kubernetes.cri-o.SandboxID": SANDBOX_ID,
        "io.kubernetes.pod.uid": UID,
    },
    "docker": {
        "io.kubernetes.container.name": "POD",
        "io.kubernetes.docker.type": "podsandbox",
        "io.kubernetes.pod.uid": UID,
    },
}
RUNTIMES = sorted(FILES)
DATABASE = BundleName(container="database", pod_uid=UID)


class Place:
    """A runtime's folder that a test fills."""

    def __init__(self, root: Path, runtime: Runtime = "containerd") -> None:
        self.folder = BundleFolder(runtime=runtime, path=root)
        self.bundles = Bundles([self.folder])

    def path(self, container_id: str = ID) -> Path:
        path = self.folder.path / container_id / FILES[self.folder.runtime]
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def put(self, annotations: object, container_id: str = ID) -> None:
        key = "Config" if self.folder.runtime == "docker" else "annotations"
        value = {"Labels": annotations} if key == "Config" else annotations
        self.path(container_id).write_text(json.dumps({"ociVersion": "1.0.2", key: value}))

    def put_shim(self, text: str, container_id: str = ID) -> None:
        (self.path(container_id).parent / "shim-binary-path").write_text(text)


@pytest.fixture(params=RUNTIMES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return Place(tmp_path, request.param)


@pytest.fixture
def containerd(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("containerd-database", DATABASE),
        ("containerd-sandbox", BundleName(container=None, pod_uid=UID)),
        (
            "containerd-static-web",
            BundleName(container="web", pod_uid=PodUID("81aa88beeaf4deecc4b93bd8b6497f0e")),
        ),
    ],
)
def test_a_recorded_bundle_names_its_container(
    containerd: Place, recorded: str, name: BundleName
) -> None:
    containerd.path().write_bytes((RECORDED / f"{recorded}.json").read_bytes())
    assert containerd.bundles.name_of(ID) == name


def test_a_container_is_named_by_each_runtime(place: Place) -> None:
    place.put(ANNOTATIONS[place.folder.runtime])
    assert place.bundles.name_of(ID) == DATABASE


def test_a_sandbox_is_no_container_of_the_pod(place: Place) -> None:
    place.put(SANDBOX[place.folder.runtime], SANDBOX_ID)
    name = place.bundles.name_of(SANDBOX_ID)
    assert name is not None
    assert (name.container, name.pod_uid) == (None, UID)


def test_another_runtimes_keys_in_a_pods_annotations_name_nothing(place: Place) -> None:
    own = ANNOTATIONS[place.folder.runtime]
    forged = {
        key: value
        for runtime, told in SANDBOX.items()
        if runtime != place.folder.runtime
        for key, value in told.items()
    }
    place.put(forged | own)
    assert place.bundles.name_of(ID) == DATABASE


def test_the_folder_that_has_the_container_is_asked(tmp_path: Path) -> None:
    crio = Place(tmp_path / "crio", "cri-o")
    crio.put(ANNOTATIONS["cri-o"])
    empty = BundleFolder(runtime="containerd", path=tmp_path / "nothing")
    assert Bundles([empty, crio.folder]).name_of(ID) == DATABASE
    assert Bundles([empty, crio.folder]).present() == (crio.folder,)


def test_the_well_known_folders_are_absolute_and_told_apart() -> None:
    assert all(folder.path.is_absolute() for folder in KNOWN_FOLDERS)
    assert {folder.runtime for folder in KNOWN_FOLDERS} == set(FILES)
    assert len({folder.path for folder in KNOWN_FOLDERS}) == len(KNOWN_FOLDERS)


@pytest.mark.parametrize("missing", ["container-name", "container-type", "sandbox-uid"])
def test_without_name_type_or_pod_it_is_unknown(containerd: Place, missing: str) -> None:
    told = dict(ANNOTATIONS["containerd"])
    del told[f"io.kubernetes.cri.{missing}"]
    containerd.put(told)
    assert containerd.bundles.name_of(ID) is None


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "null", '{"annotations": null}', '{"annotations": []}', '{"annotations": {"a": 1}}',
     "[" * 100_000, '{"ociVersion": "1.0.2-dev", "annotations": {"io.kubernetes.cri.container-na'],
)  # fmt: skip
def test_what_is_no_bundle_is_unknown(containerd: Place, content: str) -> None:
    containerd.path().write_text(content)
    assert containerd.bundles.name_of(ID) is None


def test_a_half_written_bundle_is_read_again(containerd: Place) -> None:
    containerd.put(ANNOTATIONS["containerd"])
    whole = containerd.path().read_text()
    containerd.path().write_text(whole[: len(whole) // 2])
    assert containerd.bundles.name_of(ID) is None
    containerd.path().write_text(whole)
    assert containerd.bundles.name_of(ID) == DATABASE


def test_what_is_known_is_not_read_again_until_it_is_forgotten(containerd: Place) -> None:
    for container_id in (ID, OTHER_ID):
        containerd.put(ANNOTATIONS["containerd"], container_id)
        assert containerd.bundles.name_of(container_id) == DATABASE
        containerd.path(container_id).unlink()
    containerd.bundles.forget_others({ID})
    assert containerd.bundles.name_of(ID) == DATABASE
    assert containerd.bundles.name_of(OTHER_ID) is None


@pytest.mark.parametrize(
    "container_id",
    ["", ".", "..", "../x", "/etc", f"{ID}/", f"../{ID}", "x" * 64, ID.upper(), ID + "\n"],
)
def test_what_is_no_id_leads_nowhere(tmp_path: Path, container_id: str) -> None:
    inner = Place(tmp_path / "a" / "tasks")
    inner.put(ANNOTATIONS["containerd"])
    for place in (tmp_path / "a", tmp_path / "a" / "tasks"):
        (place / "config.json").write_text(inner.path().read_text())
    assert inner.bundles.name_of(container_id) is None


def test_symbolic_links_are_not_followed(containerd: Place, tmp_path: Path) -> None:
    containerd.put(ANNOTATIONS["containerd"], OTHER_ID)
    (tmp_path / ID).symlink_to(OTHER_ID)
    assert containerd.bundles.name_of(ID) is None
    (tmp_path / ID).unlink()
    containerd.path().symlink_to(containerd.path(OTHER_ID))
    assert containerd.bundles.name_of(ID) is None


def test_a_pipe_or_a_folder_in_the_files_place_is_unknown(containerd: Place) -> None:
    path = containerd.path()
    os.mkfifo(path)
    assert containerd.bundles.name_of(ID) is None
    path.unlink()
    path.mkdir()
    assert containerd.bundles.name_of(ID) is None


def test_a_file_that_is_too_large_is_not_read(containerd: Place) -> None:
    containerd.put(ANNOTATIONS["containerd"] | {"padding": " " * (1 << 20)})
    assert containerd.bundles.name_of(ID) is None


def test_no_descriptor_is_left_open(containerd: Place) -> None:
    containerd.put(ANNOTATIONS["containerd"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))  # noqa: PTH208 counted
    try:
        for _ in range(30):
            containerd.bundles.forget_others(())
            assert containerd.bundles.name_of(ID) == DATABASE
            assert containerd.bundles.name_of(OTHER_ID) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("shim", "runtime", "has_own_kernel"),
    [
        ("/usr/bin/containerd-shim-runc-v2", "runc", False),
        ("/opt/kata/bin/containerd-shim-kata-qemu-v2\n", "kata-qemu", True),
        ("/usr/local/bin/containerd-shim-runsc-v1", "runsc", True),
        ("/usr/bin/containerd-shim-spin-v2", "spin", False),
        ("/opt/own/shim", "shim", False),
    ],
)
def test_the_shim_tells_the_runtime(
    containerd: Place, shim: str, runtime: str, *, has_own_kernel: bool
) -> None:
    containerd.put(ANNOTATIONS["containerd"])
    containerd.put_shim(shim)
    name = containerd.bundles.name_of(ID)
    assert name is not None
    assert (name.runtime, name.has_own_kernel) == (runtime, has_own_kernel)


def test_a_container_in_its_sandboxs_shim_has_the_sandboxs_runtime(containerd: Place) -> None:
    containerd.put(ANNOTATIONS["containerd"])
    containerd.put(SANDBOX["containerd"], SANDBOX_ID)
    containerd.put_shim("/usr/bin/containerd-shim-kata-v2", SANDBOX_ID)
    name = containerd.bundles.name_of(ID)
    assert name is not None
    assert name.has_own_kernel


def test_a_sandbox_that_is_no_task_is_asked_where_containerd_keeps_it(tmp_path: Path) -> None:
    tasks = Place(tmp_path / "io.containerd.runtime.v2.task" / "k8s.io")
    tasks.put(ANNOTATIONS["containerd"])
    sandboxes = Place(tmp_path / "io.containerd.sandbox.controller.v1.shim" / "k8s.io")
    sandboxes.put_shim("/opt/kata/bin/containerd-shim-kata-v2", SANDBOX_ID)
    name = tasks.bundles.name_of(ID)
    assert name is not None
    assert (name.runtime, name.has_own_kernel) == ("kata", True)


def test_crio_tells_the_handler_with_the_sandbox_only(tmp_path: Path) -> None:
    crio = Place(tmp_path, "cri-o")
    forged = {"io.kubernetes.cri-o.RuntimeHandler": "runc"}
    crio.put(ANNOTATIONS["cri-o"] | forged)
    crio.put(SANDBOX["cri-o"], SANDBOX_ID)
    name = crio.bundles.name_of(ID)
    assert name is not None
    assert name.runtime == "kata"


def test_a_sandbox_id_that_is_none_is_not_followed(containerd: Place, tmp_path: Path) -> None:
    outside = tmp_path / "shim-binary-path"
    outside.write_text("/usr/bin/containerd-shim-kata-v2")
    containerd.put(ANNOTATIONS["containerd"] | {"io.kubernetes.cri.sandbox-id": "."})
    assert containerd.bundles.name_of(ID) == DATABASE


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["annotations", "Config", "Labels", *ANNOTATIONS["docker"]]),
            inner | st.sampled_from(["container", "sandbox"]),
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(runtime=st.sampled_from(RUNTIMES), content=st.binary(max_size=40) | json_values)
def test_any_content_is_a_name_or_unknown(runtime: Runtime, content: object) -> None:
    with scratch_folder() as folder:
        place = Place(Path(folder), runtime)
        raw = content if isinstance(content, bytes) else json.dumps(content).encode()
        place.path().write_bytes(raw)
        name = place.bundles.name_of(ID)
    assert name is None or (name.pod_uid and name.container != "")
