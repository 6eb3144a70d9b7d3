"""The kubelet's cgroups are found, and told apart, on trees that real ones made or would make."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.cgroups import CgroupPath
from agent.core.pods import Pod, PodUID, QosClass
from agent.errors import EnvironmentProblem
from agent.node.cgroup_layout import CgroupLayout, container_id, detect_layout
from agent.node.cgroupfs import CgroupFs
from tests.scratch import scratch_folder

RECORDED = Path(__file__).parents[1] / "data" / "runtime"
ID = "0848765b81f8d7c6ab1123779b6a2ef9a28dc4949d7fe49d01299ff29c6fe07a"
UID = PodUID("ee08ee4c-3de0-403a-a21c-8432c97be5fd")
HOST = ("init.scope", "system.slice/containerd.service", "user.slice/user-0.slice", "docker")
Driver = Literal["systemd", "cgroupfs"]
DRIVERS: list[Driver] = ["systemd", "cgroupfs"]


@dataclass
class Tree:
    """Cgroups of a machine, as plain directories."""

    root: Path
    cgroups: CgroupFs = field(init=False)

    def __post_init__(self) -> None:
        self.cgroups = CgroupFs(self.root)
        self.make(*HOST)

    def make(self, *paths: str) -> None:
        for path in paths:
            (self.root / path).mkdir(parents=True)

    def populate(self, path: str, *, populated: bool = True) -> None:
        (self.root / path / "cgroup.events").write_text(f"populated {populated:d}\nfrozen 0\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@dataclass
class Recorded:
    """A node's cgroups, and the ids of the containers that each pod's status names."""

    cgroups: list[str]
    pods: dict[str, set[str]]


def recorded(driver: Driver) -> Recorded:
    content = json.loads((RECORDED / f"tree-{driver}.json").read_text())
    running = {uid: set(pod["running"].values()) for uid, pod in content["pods"].items()}
    return Recorded(content["cgroups"], running)


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_layout_of_a_recorded_node_is_found(tree: Tree, driver: Driver) -> None:
    for path in recorded(driver).cgroups:
        (tree.root / path).mkdir(parents=True, exist_ok=True)
    assert detect_layout(tree.cgroups) == CgroupLayout(driver=driver)
    assert detect_layout(tree.cgroups, CgroupPath()) == CgroupLayout(driver=driver)


@pytest.mark.parametrize("driver", DRIVERS)
def test_every_recorded_cgroup_is_the_kubelets_a_pods_or_a_containers(driver: Driver) -> None:
    node, layout = recorded(driver), CgroupLayout(driver=driver)
    parents = {layout.qos_parent(qos) for qos in QosClass}
    found: dict[str, set[str]] = {}
    for path in map(CgroupPath, node.cgroups):
        uid, container = layout.uid_of(path), container_id(path)
        assert [path in parents, uid is not None, container is not None].count(True) == 1, path
        if container is not None:
            above = layout.uid_of(path.parent)
            assert above is not None
            found.setdefault(above, set()).add(container)
    assert found.keys() == node.pods.keys()
    for pod, named in node.pods.items():
        assert named < found[pod]
        assert len(found[pod] - named) == 1, "only the sandbox is in no status"


@pytest.mark.parametrize("path", ["kubepods.slice", "kubepods"])
def test_an_empty_node_has_a_layout(tree: Tree, path: str) -> None:
    tree.make(path)
    assert detect_layout(tree.cgroups).kubepods() == CgroupPath(path)


@pytest.mark.parametrize(
    ("path", "driver", "root"),
    [
        ("kubelet.slice/kubelet-kubepods.slice", "systemd", "kubelet"),
        ("kubelet/kubepods", "cgroupfs", "kubelet"),
        ("a_b.slice/a_b-c.slice/a_b-c-kubepods.slice", "systemd", "a-b/c"),
        ("a-b/c/kubepods", "cgroupfs", "a-b/c"),
    ],
)
def test_a_cgroup_root_such_as_kinds_is_found(
    tree: Tree, path: str, driver: Driver, root: str
) -> None:
    tree.make(path)
    layout = detect_layout(tree.cgroups)
    assert layout == CgroupLayout(driver=driver, root=CgroupPath(root))
    assert layout.kubepods() == CgroupPath(path)
    # The kubelet spells it with a slash at the front.
    given_root = detect_layout(tree.cgroups, CgroupPath(f"/{root}"))
    assert given_root.kubepods() == CgroupPath(path)


@pytest.mark.parametrize(
    "path",
    [
        f"docker/{ID}/kubelet/kubepods",
        f"system.slice/docker-{ID}.scope/kubepods.slice",
        "machine.slice/libpod-1.scope/container/kubepods",
        "system.slice/kubepods.slice",
        "kubepods-pod1.slice",
        "kubepods.service",
        "mykubepods",
    ],
)
def test_what_is_inside_of_a_container_or_only_looks_alike_is_no_layout(
    tree: Tree, path: str
) -> None:
    tree.make(path)
    with pytest.raises(EnvironmentProblem, match="no kubelet has made its cgroups"):
        detect_layout(tree.cgroups)


def test_the_hosts_kubelet_is_not_confused_with_one_in_its_containers(tree: Tree) -> None:
    tree.make(f"kubepods/pod1/{ID}/kubepods", f"docker/{ID}/kubelet/kubepods")
    assert detect_layout(tree.cgroups).kubepods() == CgroupPath("kubepods")


def test_of_two_drivers_the_one_with_processes_counts(tree: Tree) -> None:
    tree.make("kubepods.slice", "kubepods")
    tree.populate("kubepods", populated=False)
    tree.populate("kubepods.slice")
    for root in (None, CgroupPath()):
        assert detect_layout(tree.cgroups, root).driver == "systemd"


@pytest.mark.parametrize("used", [(), ("kubepods.slice", "kubelet/kubepods")])
def test_where_it_cannot_be_told_the_cure_is_to_say_it(tree: Tree, used: Iterable[str]) -> None:
    tree.make("kubepods.slice", "kubelet/kubepods")
    for path in used:
        tree.populate(path)
    with pytest.raises(EnvironmentProblem) as ambiguous:
        detect_layout(tree.cgroups)
    assert "/kubepods.slice and /kubelet/kubepods could each be the kubelet's" in str(
        ambiguous.value
    )
    assert "set cgroupDriver and cgroupRoot" in str(ambiguous.value)


def test_a_root_that_is_not_there_is_named(tree: Tree) -> None:
    tree.make("kubepods.slice")
    with pytest.raises(EnvironmentProblem, match="below cgroupRoot /kubelet; start the kubelet"):
        detect_layout(tree.cgroups, CgroupPath("/kubelet"))


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"pod/cri-containerd-{ID}.scope", ID),
        (f"pod/crio-{ID}.scope", ID),
        (f"pod/docker-{ID}.scope", ID),
        (f"pod/{ID}", ID),
        (f"pod/crio-{ID}", ID),
        (f"pod/kata_{ID}", ID),
        (f"pod/crio-{ID}.scope/container", ID),
        (f"pod/cri-containerd-{ID}.scope/container", ID),
        (f"pod/{ID}/container", ID),
        (f"pod/crio-conmon-{ID}.scope", None),
        (f"pod/crio-conmon-{ID}", None),
        (f"pod/cri-containerd-{ID[:-1]}.scope", None),
        (f"pod/cri-containerd-{ID}0.scope", None),
        (f"pod/cri-containerd-{ID}.slice", None),
        (f"pod/cri-containerd-{ID}.scope/init.scope", None),
        (f"pod/cri-containerd-{ID}.scope/container/deeper", None),
        ("pod/container", None),
        ("pod/81aa88beeaf4deecc4b93bd8b6497f0e", None),
        ("kubepods.slice", None),
        ("", None),
    ],
)
def test_a_leaf_has_the_id_of_its_container(path: str, found: str | None) -> None:
    assert container_id(CgroupPath(path)) == found


names = st.from_regex(r"[a-jl-z][a-z0-9]{0,4}(-[a-z0-9]{1,3})?", fullmatch=True)


@given(
    driver=st.sampled_from(DRIVERS),
    root=st.lists(names, max_size=3),
    qos=st.sampled_from(QosClass),
)
def test_the_layout_is_found_back_from_a_pods_cgroup(
    driver: Driver, root: list[str], qos: QosClass
) -> None:
    layout = CgroupLayout(driver=driver, root=CgroupPath("/".join(root)))
    with scratch_folder() as folder:
        (Path(folder) / layout.pod(Pod(uid=UID), qos).relative).mkdir(parents=True)
        assert detect_layout(CgroupFs(Path(folder))) == layout
