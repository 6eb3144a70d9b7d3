"""The real hierarchy's adapter, on plain folders: errors, one write(2), and what is mounted."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.core.cgroups import CgroupPath
from agent.errors import CgroupError, EnvironmentProblem
from agent.node.cgroupfs import CgroupFs, _gone, check_mounted
from agent.ports import GONE

from .rig import real

GROUP = CgroupPath("a")
V1 = """\
23 27 0:22 / /sys rw,relatime - sysfs sysfs rw
31 23 0:29 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:30 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset
"""
HYBRID = V1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
V2 = """\
1 0 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
23 1 0:22 / /sys rw,relatime shared:2 - sysfs sysfs rw
31 23 0:29 / /sys/fs/cgroup rw,nosuid,nodev,noexec shared:4 - cgroup2 cgroup2 rw,nsdelegate
"""
READ_ONLY = V2.replace("cgroup rw,nosuid", "cgroup ro,nosuid")
NOT_MOUNTED = V2.replace("/sys/fs/cgroup", "/mnt/some\\040where")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "cpuset.cpus").write_text("0-7\n")
    (tmp_path / "a" / "cpu.max").write_text("max 100000\n")
    return tmp_path


@contextmanager
def without_root(file: Path) -> Iterator[None]:
    """Make ``file`` unreachable, for root too."""
    file.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)
        yield
    finally:
        os.seteuid(user)
        file.chmod(0o644)


def test_a_value_is_written_over_the_old_one_without_truncation(folder: Path) -> None:
    CgroupFs(folder).write(GROUP, "cpu.max", "50000")
    assert (folder / "a" / "cpu.max").read_text() == "5000000000\n"


def test_only_the_final_newline_is_taken_from_a_text(folder: Path) -> None:
    (folder / "a" / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (folder / "a" / "cgroup.procs").write_text("")
    cgroups = CgroupFs(folder)
    assert cgroups.read(GROUP, "cgroup.events") == "populated 1\nfrozen 0"
    assert cgroups.read(GROUP, "cgroup.procs") == ""


def test_a_long_list_of_processes_is_read_to_its_end(folder: Path) -> None:
    pids = "\n".join(map(str, range(100_000)))
    (folder / "a" / "cgroup.procs").write_text(pids + "\n")
    assert CgroupFs(folder).read(GROUP, "cgroup.procs") == pids


def test_a_missing_file_or_cgroup_is_gone(folder: Path) -> None:
    cgroups = CgroupFs(folder)
    for path in (GROUP, GROUP / "b"):
        assert cgroups.read(path, "cpuset.mems") is GONE
        assert cgroups.write(path, "cpuset.mems", "0") is GONE
    assert cgroups.identity(GROUP / "b") is GONE
    assert cgroups.children(GROUP / "b") == ()
    cgroups.remove(GROUP / "b")
    assert not (folder / "a" / "cpuset.mems").exists()


def test_a_device_that_vanished_is_gone_too(folder: Path) -> None:
    assert _gone(OSError(errno.ENODEV, "gone"), str(folder), "read") is GONE


def test_files_are_no_children(folder: Path) -> None:
    (folder / "a" / "x.slice").mkdir()
    (folder / "a" / "link").symlink_to(folder)
    assert CgroupFs(folder).children(GROUP) == (GROUP / "x.slice",)


def test_without_permission_the_error_says_who_to_be(folder: Path) -> None:
    cgroups = CgroupFs(folder)
    with without_root(folder / "a" / "cpuset.cpus"):
        with pytest.raises(CgroupError, match=r"EACCES.*run numalet as root") as refused:
            cgroups.write(GROUP, "cpuset.cpus", "0")
        with pytest.raises(CgroupError, match=r"cannot read .*EACCES"):
            cgroups.read(GROUP, "cpuset.cpus")
    assert refused.value.errno == errno.EACCES
    assert refused.value.exit_status == 3


def test_a_read_only_mount_is_named_as_the_cause(folder: Path) -> None:
    program = (
        "from pathlib import Path\n"
        "from agent.core.cgroups import CgroupPath\n"
        "from agent.errors import CgroupError\n"
        "from agent.node.cgroupfs import CgroupFs\n"
        "try:\n"
        f"    CgroupFs(Path({str(folder)!r})).write(CgroupPath('a'), 'cpu.max', 'max')\n"
        "except CgroupError as error:\n"
        "    print(error)\n"
    )
    mount = f"mount --bind {folder} {folder} && mount -o remount,ro,bind {folder}"
    script = f'{mount} || exit 77; exec "$0" -c "$1"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    try:
        done = subprocess.run(
            [*command, sys.executable, program], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("no unshare(1) to make a read-only mount with")
    if not done.stdout:
        pytest.skip(f"a read-only mount cannot be made here: {done.stderr}")
    assert "EROFS" in done.stdout
    assert "mount the cgroup file system read-write" in done.stdout


def test_a_cgroup_that_cannot_be_made_or_removed_says_why(folder: Path) -> None:
    cgroups = CgroupFs(folder)
    (folder / "cgroup.subtree_control").write_text("cpuset cpu memory\n")
    (folder / "file").write_text("")
    with pytest.raises(CgroupError, match=r"cannot create .*EEXIST"):
        cgroups.make(CgroupPath("file"))
    with pytest.raises(CgroupError, match=r"cannot remove .*ENOTEMPTY"):
        cgroups.remove(GROUP)


def test_make_says_so_where_controllers_cannot_be_enabled(folder: Path) -> None:
    with pytest.raises(CgroupError, match=r"enable controllers in .*ENOENT.*controller"):
        CgroupFs(folder).make(GROUP / "b")


def test_make_writes_only_the_missing_controllers(folder: Path) -> None:
    (folder / "cgroup.subtree_control").write_text("cpu io\n")
    CgroupFs(folder).make(GROUP)
    assert (folder / "cgroup.subtree_control").read_text().startswith("+cpuset +memory")


@pytest.mark.parametrize(
    ("enabled", "offered", "written"),
    [
        ("", "cpuset cpu io memory hugetlb pids", "+cpuset +cpu +memory +hugetlb"),
        ("", "cpuset cpu memory", "+cpuset +cpu +memory"),
        ("cpuset cpu memory", "cpuset cpu memory hugetlb", "+hugetlb"),
    ],
)
def test_huge_pages_are_counted_where_the_kernel_can_in_the_same_write(
    folder: Path, enabled: str, offered: str, written: str
) -> None:
    (folder / "cgroup.controllers").write_text(f"{offered}\n")
    (folder / "cgroup.subtree_control").write_text(enabled)
    CgroupFs(folder).make(GROUP)
    assert (folder / "cgroup.subtree_control").read_text().startswith(written)


def test_where_all_is_enabled_nothing_is_written(folder: Path) -> None:
    (folder / "cgroup.controllers").write_text("cpuset cpu memory hugetlb\n")
    (folder / "cgroup.subtree_control").write_text("cpuset cpu memory hugetlb\n")
    CgroupFs(folder).make(GROUP)
    assert (folder / "cgroup.subtree_control").read_text() == "cpuset cpu memory hugetlb\n"


# What is mounted


@pytest.mark.parametrize(
    ("mountinfo", "root", "message"),
    [
        (V1, "/sys/fs/cgroup", "is cgroup v1, which numalet does not use; boot with"),
        (V1, "/sys/fs/cgroup/cpuset", "is cgroup v1"),
        (HYBRID, "/sys/fs/cgroup", "is hybrid: .*cgroup v2 is at /sys/fs/cgroup/unified; boot"),
        (READ_ONLY, "/sys/fs/cgroup", "is mounted read-only; run numalet on the host"),
        (V2.replace("cgroup2 rw", "cgroup2 ro"), "/sys/fs/cgroup", "is mounted read-only"),
        (NOT_MOUNTED, "/sys/fs/cgroup", "is not a cgroup v2 hierarchy: cgroup2 is mounted at /mnt"),
        ("", "/sys/fs/cgroup", "is not a cgroup v2 hierarchy; mount cgroup2 there"),
        (
            V2 + "99 31 0:50 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n",
            "/sys/fs/cgroup",
            "is not a cgroup v2 hierarchy",
        ),
    ],
)
def test_what_is_no_usable_cgroup_v2_is_called_by_its_name(
    mountinfo: str, root: str, message: str
) -> None:
    with pytest.raises(EnvironmentProblem, match=f"{root} {message}"):
        check_mounted(Path(root), mountinfo)


@pytest.mark.parametrize(
    ("mountinfo", "root"),
    [
        (V2, "/sys/fs/cgroup"),
        (V2, "/sys/fs/cgroup/numalet.slice"),
        (HYBRID, "/sys/fs/cgroup/unified"),
        (NOT_MOUNTED, "/mnt/some where"),
        (V1 + V2, "/sys/fs/cgroup"),
    ],
)
def test_a_writable_cgroup2_mount_is_accepted(mountinfo: str, root: str) -> None:
    check_mounted(Path(root), mountinfo)


def checked(root: Path, controllers: str) -> None:
    (root / "cgroup.controllers").write_text(controllers)
    table = root / "mountinfo"
    table.write_text(V2 + f"99 1 0:50 / {root} rw - cgroup2 cgroup2 rw\n")
    CgroupFs(root, mountinfo=table).check()


def test_a_cgroup_inside_the_host_s_hierarchy_is_refused_unless_a_kubelet_s_pods_are_there(
    tmp_path: Path,
) -> None:
    cgroups = CgroupFs(tmp_path)
    cgroups.check_whole()
    (tmp_path / "cgroup.type").write_text("domain\n")
    with pytest.raises(EnvironmentProblem, match=r"inside the host's hierarchy.*hostRoot"):
        cgroups.check_whole()
    (tmp_path / "kubelet.slice").mkdir()
    cgroups.check_whole()


def test_a_complete_hierarchy_passes_the_check(tmp_path: Path) -> None:
    checked(tmp_path.resolve(), "cpuset cpu io memory pids\n")


def test_missing_controllers_are_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="lacks the controllers cpuset, memory; enable"):
        checked(tmp_path.resolve(), "cpu io\n")


def test_a_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="nowhere is not there"):
        CgroupFs(tmp_path / "nowhere").check()


@pytest.mark.skipif(not Path("/proc/self/mountinfo").exists(), reason="no Linux")
def test_a_plain_folder_fails_the_check_with_this_machines_mounts(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=str(tmp_path.resolve())):
        CgroupFs(tmp_path).check()


# Only on a real hierarchy


@pytest.mark.realcgroup
def test_a_real_hierarchy_passes_the_check_and_a_part_of_it_does_not() -> None:
    with real() as rig:
        CgroupFs(Path("/sys/fs/cgroup")).check()
        assert isinstance(rig.cgroups, CgroupFs)
        with pytest.raises(EnvironmentProblem, match="inside the host's hierarchy"):
            rig.cgroups.check()


@pytest.mark.realcgroup
def test_a_cgroup_that_comes_and_goes_is_written_or_gone_and_never_an_error() -> None:
    with real() as rig:
        group = rig.group("race", "r")
        done = threading.Event()

        def churn() -> None:
            while not done.is_set():
                rig.cgroups.remove(group)
                rig.cgroups.make(group)

        thread = threading.Thread(target=churn)
        thread.start()
        try:
            answers = [rig.cgroups.write(group, "cpuset.cpus", f"{i % 4}") for i in range(3000)]
            texts = [rig.cgroups.read(group, "cgroup.procs") for _ in range(3000)]
        finally:
            done.set()
            thread.join()
        assert {None, GONE} >= set(answers)
        assert {"", GONE} >= set(texts)
        assert GONE in answers
