"""The DaemonSet on a real kernel: the image, started by runc as the manifests ask, and no more."""

import filecmp
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent import __version__
from agent.core.cpuset import CPUSet
from hack.lab.errors import UnavailableError
from hack.lab.topology import TOPOLOGIES
from tests.deploy.tools import (
    DEPLOY,
    PROJECT,
    config_text,
    documents,
    kustomized,
    pod_spec,
    program,
)
from tests.sources.api_server import make_certificate

from .daemon_set import POD_QUOTA, QUOTAS
from .rig import in_guest, not_available

pytestmark = pytest.mark.vm

IMAGE = f"numalet:{__version__}"
CPUS = CPUSet(range(len(TOPOLOGIES["2n"].by_number())))
POD = "kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice"
MAIN, SIDECAR, LATE = (f"{POD}/cri-containerd-{digit * 64}.scope" for digit in "abc")

Story = dict[str, Any]


def buildah(*words: str) -> str:
    done = subprocess.run([program("buildah"), *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = f"there is no image, 'make image' builds one: {done.stderr.strip()}"
        not_available(UnavailableError(why))
    return done.stdout.strip()


@contextmanager
def mounted_image() -> Iterator[Path]:
    """Yield the image's file system; skip the test where it is of another state of the project."""
    container = buildah("from", "--pull-never", IMAGE)
    try:
        root = Path(buildah("mount", container))
        (installed,) = root.glob("opt/numalet/lib/python3*/site-packages/agent")
        here = sorted((PROJECT / "agent").glob("**/*.py"))
        names = [str(path.relative_to(PROJECT / "agent")) for path in here]
        _, different, missing = filecmp.cmpfiles(PROJECT / "agent", installed, names, shallow=False)
        if different or missing:
            why = f"{IMAGE} is not of this checkout: 'make image' builds it anew"
            not_available(UnavailableError(why))
        yield root
    finally:
        buildah("rm", container)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("daemon-set")
    for name, overlay in (("daemon-set.json", "base"), ("release.json", "overlays/release")):
        objects = documents(kustomized(DEPLOY / overlay))
        (folder / name).write_text(json.dumps(pod_spec(objects)))
        (folder / "config").mkdir(exist_ok=True)
        (folder / "config/config.yaml").write_text(config_text(objects))
    make_certificate(folder)
    (folder / "token").write_text("secret")
    with mounted_image() as root:
        subprocess.run(["tar", "-C", root, "-cf", folder / "rootfs.tar", "."], check=True)
    said = json.loads(buildah("inspect", "--type", "image", IMAGE))
    (folder / "image.json").write_text(json.dumps(said["OCIv1"]["config"]))

    outcome = in_guest(TOPOLOGIES["2n"], f"python -m tests.vm.daemon_set {folder}", results=folder)

    (folder / "rootfs.tar").unlink()
    logs = "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
    assert outcome.status == 0, f"{outcome.stderr}\n{logs}"
    told: Story = json.loads((folder / "observed.json").read_text())
    return told


def cpus(stage: Story, path: str) -> CPUSet:
    return CPUSet.parse(stage["values"][path]["cpuset.cpus.effective"])


def test_it_has_no_capability_no_way_to_get_one_and_a_seccomp_filter(story: Story) -> None:
    kernel = story["placed"]["kernel"]

    capabilities = [set_ for name, set_ in kernel.items() if name.startswith("Cap")]
    assert capabilities == ["0" * 16] * 5
    assert (kernel["NoNewPrivs"], kernel["Seccomp"]) == ("1", "2")
    assert story["seccomp"] == "SCMP_ACT_ERRNO"  # what containerd's own filter does not name


def test_of_the_host_it_can_write_cgroups_and_its_own_folder_only(story: Story) -> None:
    lines = [line.split() for line in story["placed"]["kernel"]["mounts"].splitlines()]
    access = {fields[4]: fields[5].split(",")[0] for fields in lines}

    written = {place for place, how in access.items() if how == "rw" and "/host" in place}
    assert written == {"/host/sys/fs/cgroup", "/host/var/lib/numalet"}
    assert access["/"] == "ro"


def test_it_sees_none_of_the_host_s_processes_as_its_own(story: Story) -> None:
    assert story["placed"]["kernel"]["NSpid"].split()[-1] == "1"


def test_a_real_scope_is_given_exclusive_cpus_and_its_sidecar_the_rest(story: Story) -> None:
    placed = story["placed"]
    main, sidecar, pool = (cpus(placed, path) for path in (MAIN, SIDECAR, POD))

    assert (len(main), len(sidecar)) == (2, 1)
    assert main | sidecar == pool
    assert cpus(placed, "kubepods.slice/kubepods-besteffort.slice") == CPUS - pool


def test_quotas_are_lifted_where_cpus_are_exclusive_and_are_the_runtime_s_elsewhere(
    story: Story,
) -> None:
    before, placed = (
        {path: one["cpu.max"] for path, one in values.items()}
        for values in (story["before"], story["placed"]["values"])
    )

    assert [before[path] for path in (POD, MAIN, SIDECAR)] == [POD_QUOTA, *QUOTAS.values()]
    assert [placed[path] for path in (POD, MAIN)] == ["max 100000"] * 2
    assert placed[SIDECAR] == before[SIDECAR]


def test_a_roll_out_waits_takes_over_and_changes_no_file(story: Story) -> None:
    assert story["waiting"] == {"healthz": "ok\n", "readyz": "", "first": "ok\n"}
    assert (story["first"], story["changes"]) == (0, 0)
    assert story["taken over"]["values"] == story["placed"]["values"]
    assert story["taken over"]["status"]["writes"] == {}


def test_a_container_that_starts_later_is_named_by_its_bundle(story: Story) -> None:
    late = story["late"]

    assert cpus(late, LATE) == cpus(late, SIDECAR)
    assert cpus(late, MAIN) == cpus(story["placed"], MAIN)


def test_its_command_line_works_inside(story: Story) -> None:
    assert "default/db" in story["command"]


def test_a_check_up_inside_finds_nothing_that_keeps_it_from_working(story: Story) -> None:
    problems = [finding for finding in story["doctor"] if finding["level"] == "problem"]

    assert not problems


def test_cpus_that_go_are_heard_of_in_its_own_network_namespace(story: Story) -> None:
    assert "cpu7 offline" in story["news"][0]


def test_releasing_leaves_every_scope_as_wide_as_before(story: Story) -> None:
    before, after = story["before"], story["after"]
    paths = before.keys() & after.keys()

    assert story["release"] == 0
    assert MAIN in paths
    file = "cpuset.cpus.effective"
    assert {p: after[p][file] for p in paths} == {p: before[p][file] for p in paths}
    assert {p: after[p]["cpu.max"] for p in paths} == {p: before[p]["cpu.max"] for p in paths}
