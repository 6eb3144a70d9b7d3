"""Names of cgroups, compared with those that a kubelet v1.36 made under both drivers."""

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.cgroups import CgroupPath
from agent.core.pods import Pod, PodUID, QosClass
from agent.errors import InputError
from agent.node.cgroup_layout import (
    CgroupLayout,
    is_own_container,
    kubelet_uid,
    single_host_layout,
)

SYSTEMD, CGROUPFS = CgroupLayout(driver="systemd"), CgroupLayout(driver="cgroupfs")
HASH = "81aa88beeaf4deecc4b93bd8b6497f0e"
MIRROR = Pod(
    uid=PodUID("eae25718-2ac4-42d0-bf93-a9d1dc187456"),
    name="static-web-node-a",
    annotations={"kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH},
)
BURSTABLE_SLICE = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod"
BEST_EFFORT_SLICE = "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod"
RECORDED = {
    (SYSTEMD, QosClass.GUARANTEED, "88846ce0-2680-490d-9405-4654a5a869b0"): (
        "kubepods.slice/kubepods-pod88846ce0_2680_490d_9405_4654a5a869b0.slice"
    ),
    (SYSTEMD, QosClass.BURSTABLE, "22dc8c6a-8c49-461e-9deb-6e6e6a814f44"): (
        BURSTABLE_SLICE + "22dc8c6a_8c49_461e_9deb_6e6e6a814f44.slice"
    ),
    (SYSTEMD, QosClass.BEST_EFFORT, "9476c689-a46d-493d-87dd-c4559ec6b6a9"): (
        BEST_EFFORT_SLICE + "9476c689_a46d_493d_87dd_c4559ec6b6a9.slice"
    ),
    (SYSTEMD, QosClass.BURSTABLE, HASH): BURSTABLE_SLICE + f"{HASH}.slice",
    (CGROUPFS, QosClass.GUARANTEED, "ee08ee4c-3de0-403a-a21c-8432c97be5fd"): (
        "kubepods/podee08ee4c-3de0-403a-a21c-8432c97be5fd"
    ),
    (CGROUPFS, QosClass.BURSTABLE, "05208acd-8411-4122-b624-6703505827e1"): (
        "kubepods/burstable/pod05208acd-8411-4122-b624-6703505827e1"
    ),
    (CGROUPFS, QosClass.BEST_EFFORT, "ed113bf5-f24b-4526-9015-3378c99de140"): (
        "kubepods/besteffort/poded113bf5-f24b-4526-9015-3378c99de140"
    ),
    (CGROUPFS, QosClass.BURSTABLE, HASH): f"kubepods/burstable/pod{HASH}",
}


@pytest.mark.parametrize(
    ("layout", "qos", "uid", "path"), [(*known, path) for known, path in RECORDED.items()]
)
def test_a_pods_cgroup_is_where_the_kubelet_made_it(
    layout: CgroupLayout, qos: QosClass, uid: str, path: str
) -> None:
    assert layout.pod(Pod(uid=PodUID(uid)), qos) == CgroupPath(path)
    assert layout.uid_of(CgroupPath(path)) == uid


@pytest.mark.parametrize(
    ("layout", "root", "pod"),
    [
        (SYSTEMD, "kubepods.slice", "kubepods.slice/kubepods-podu_1.slice"),
        (CGROUPFS, "kubepods", "kubepods/podu-1"),
        (
            CgroupLayout(driver="systemd", root=CgroupPath("/kubelet")),
            "kubelet.slice/kubelet-kubepods.slice",
            "kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-podu_1.slice",
        ),
        (
            CgroupLayout(driver="systemd", root=CgroupPath("a-b/c")),
            "a_b.slice/a_b-c.slice/a_b-c-kubepods.slice",
            "a_b.slice/a_b-c.slice/a_b-c-kubepods.slice/a_b-c-kubepods-podu_1.slice",
        ),
        (
            CgroupLayout(driver="cgroupfs", root=CgroupPath("kubelet")),
            "kubelet/kubepods",
            "kubelet/kubepods/podu-1",
        ),
        (
            CgroupLayout(driver="systemd", prefix=CgroupPath("numalet.slice")),
            "numalet.slice/kubepods.slice",
            "numalet.slice/kubepods.slice/kubepods-podu_1.slice",
        ),
    ],
)
def test_a_cgroup_root_or_prefix_stands_before_all(
    layout: CgroupLayout, root: str, pod: str
) -> None:
    assert layout.kubepods() == layout.qos_parent(QosClass.GUARANTEED) == CgroupPath(root)
    assert layout.pod(Pod(uid=PodUID("u-1")), QosClass.GUARANTEED) == CgroupPath(pod)
    assert layout.uid_of(CgroupPath(pod)) == "u-1"


@pytest.mark.parametrize(
    ("driver", "root", "systemd", "pod"),
    [
        ("auto", "", True, "numalet-kubepods.slice/numalet-kubepods-podu_1.slice"),
        ("auto", "", False, "kubepods/podu-1"),
        ("systemd", "", False, "numalet-kubepods.slice/numalet-kubepods-podu_1.slice"),
        ("cgroupfs", "", True, "kubepods/podu-1"),
        ("cgroupfs", "a-b", True, "a-b/kubepods/podu-1"),
        (
            "systemd",
            "a-b",
            True,
            "numalet-a_b.slice/numalet-a_b-kubepods.slice/numalet-a_b-kubepods-podu_1.slice",
        ),
    ],
)
def test_a_single_hosts_pods_have_a_slice_of_their_own_by_either_driver(
    driver: Literal["auto", "systemd", "cgroupfs"],
    root: str,
    systemd: bool,  # noqa: FBT001 - a parameter of the test
    pod: str,
) -> None:
    layout = single_host_layout(driver, CgroupPath(root), systemd=systemd)
    path = layout.pod(Pod(uid=PodUID("u-1")), QosClass.GUARANTEED)
    assert path == CgroupPath(f"numalet.slice/{pod}")
    assert layout.uid_of(path) == "u-1"


def test_a_mirror_pod_has_the_cgroup_of_its_manifests_hash() -> None:
    assert kubelet_uid(MIRROR) == HASH
    assert CGROUPFS.pod(MIRROR, QosClass.BURSTABLE).name == f"pod{HASH}"


def test_an_ordinary_pod_cannot_claim_another_cgroup_by_the_annotation() -> None:
    pod = Pod(uid=PodUID("u-1"), annotations={"kubernetes.io/config.hash": "u-2"})
    assert CGROUPFS.pod(pod, QosClass.GUARANTEED).name == "podu-1"


@pytest.mark.parametrize("uid", ["", "a/../../b", "a_b", "a b", "a\n"])
def test_a_uid_that_would_leave_its_place_is_refused(uid: str) -> None:
    with pytest.raises(InputError, match=r"UID of pod default/db: .* cannot be part of a cgroup"):
        SYSTEMD.pod(Pod(uid=PodUID(uid), name="db"), QosClass.GUARANTEED)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "kubepods.slice",
        "kubepods.slice/kubepods-burstable.slice",
        "kubepods.slice/kubepods-burstable-podu_1.slice",
        "kubepods.slice/kubepods-podu-1.slice",
        "kubepods.slice/kubepods-pod.slice",
        "kubepods.slice/kubepods-podu_1.slice/cri-containerd-0.scope",
        "kubepods.slice/kubepods-podu_1",
        "system.slice/kubepods-podu_1.slice",
        "kubepods/podu-1",
    ],
)
def test_a_cgroup_that_is_no_pods_has_no_uid(path: str) -> None:
    assert SYSTEMD.uid_of(CgroupPath(path)) is None


def test_containers_have_scopes_under_systemd_and_plain_names_under_cgroupfs() -> None:
    pod = Pod(uid=PodUID("u-1"))
    in_slices = SYSTEMD.pod(pod, QosClass.BURSTABLE)
    in_folders = CGROUPFS.pod(pod, QosClass.BURSTABLE)
    assert SYSTEMD.container(in_slices, "envoy") == in_slices / "numalet-u_1-envoy.scope"
    assert CGROUPFS.container(in_folders, "envoy") == in_folders / "envoy"


@pytest.mark.parametrize("name", ["", "..", "a/b", "-a", "A", "cpu.max"])
def test_what_is_no_container_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="is not a container name"):
        CGROUPFS.container(CgroupPath("kubepods"), name)


uids = st.text("abcdef0123456789-", min_size=1, max_size=36).map(PodUID)
names = st.text("abc-9", min_size=1, max_size=5)
containers = st.tuples(
    st.text("ab-", min_size=1, max_size=4).map(PodUID),
    st.from_regex(r"[ab]([ab-]{0,3}[ab])?", fullmatch=True),
)


@given(one=containers, other=containers)
def test_no_two_containers_have_scopes_of_one_name(
    one: tuple[PodUID, str], other: tuple[PodUID, str]
) -> None:
    first, second = (
        SYSTEMD.container(SYSTEMD.pod(Pod(uid=uid), QosClass.GUARANTEED), name).name
        for uid, name in (one, other)
    )
    assert (first == second) == (one == other)


def test_the_longest_names_are_still_names_of_units() -> None:
    pod = SYSTEMD.pod(Pod(uid=PodUID("f" * 128)), QosClass.BEST_EFFORT)
    assert len(SYSTEMD.container(pod, "c" * 63).name) < 255  # UNIT_NAME_MAX of systemd


@given(
    driver=st.sampled_from(["systemd", "cgroupfs"]),
    root=st.lists(names, max_size=2),
    uid=uids,
    qos=st.sampled_from(QosClass),
)
def test_the_uid_is_found_back_from_the_path(
    driver: Literal["systemd", "cgroupfs"], root: list[str], uid: PodUID, qos: QosClass
) -> None:
    layout = CgroupLayout(driver=driver, root=CgroupPath("/".join(root)))
    path = layout.pod(Pod(uid=uid), qos)
    assert layout.uid_of(path) == uid
    assert path.parent == layout.qos_parent(qos)
    assert path.is_below(layout.kubepods())


@pytest.mark.parametrize("driver", ["systemd", "cgroupfs"])
@pytest.mark.parametrize("root", ["", "podman"])
@pytest.mark.parametrize("qos", list(QosClass))
def test_containers_of_a_single_host_are_known_by_their_cgroups(
    driver: Literal["systemd", "cgroupfs"], root: str, qos: QosClass
) -> None:
    layout = single_host_layout(driver, CgroupPath(root), systemd=False)
    pod = layout.pod(Pod(uid=PodUID("a-1")), qos)
    container = layout.container(pod, "db")
    found = [
        path
        for path in (container / "x", container, *container.ancestors)
        if is_own_container(path)
    ]
    assert found == [container]
