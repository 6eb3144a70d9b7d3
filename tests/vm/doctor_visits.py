"""Visits of the doctor to one guest in many conditions: `python -m tests.vm.doctor_visits KIND RESULTS`.

KIND is bare, systemd or spoilt.  What `numalet doctor` said each time is written to RESULTS/visits.json,
for `test_doctor` to judge on the host.
"""

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.node.procfs import boot_id
from agent.node.state_folder import StateFolderLock

CGROUPS = Path("/sys/fs/cgroup")
STATE_FOLDER = Path("/var/lib/numalet")
KUBELET_FOLDER = Path("/var/lib/kubelet")
HIERARCHY = ("cgroup-v2", "cgroup-root")
OVERWRITTEN = ["kubepods/pod1", 1234, "cpuset.cpus", "0-3"]
"""An entry of the journal: a cgroup, its identity, a file and its value."""
RESERVED = "0,4"
RESERVED_MASK = "11"
CONFIG_FILE = Path("/etc/numalet.yaml")
CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cpuManagerPolicyOptions: {full-pcpus-only: "true"}
"""

JOURNAL = STATE_FOLDER / "journal.json"
REFUSED = {"run": ["--once", "--pods", "/etc"], "release": []}
"""Commands with their options that are to begin nothing where the hierarchy cannot be used."""


def sh(command: str) -> None:
    subprocess.run(["sh", "-ec", command], check=True)


def journal() -> list[Any]:
    values: list[Any] = json.loads(JOURNAL.read_text())["values"]
    return values


@dataclass(slots=True)
class Visits:
    folder: Path
    said: dict[str, Any] = field(default_factory=dict)

    def visit(self, condition: str, *around: str) -> dict[str, str]:
        """Ask the doctor, by way of other commands, and return its cures by check."""
        command = [*around, "numalet", "doctor", "-o", "json", "--config", str(CONFIG_FILE)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if not ended.stdout:
            raise RuntimeError(f"{condition}: status {ended.returncode}: {ended.stderr}")
        answer = json.loads(ended.stdout)
        self.said[condition] = {"status": ended.returncode, "stderr": ended.stderr, **answer}
        if any(f["check"] in HIERARCHY and f["level"] == "problem" for f in answer["findings"]):
            for name, options in REFUSED.items():
                command = [*around, "numalet", name, *options]
                refused = subprocess.run(command, capture_output=True, text=True, check=False)
                outcome = {"status": refused.returncode, "stderr": refused.stderr}
                self.said[condition][name] = {**outcome, "journal": journal()}
        return {finding["check"]: finding["cure"] for finding in answer["findings"]}

    def note(self, name: str, value: object) -> None:
        self.said[name] = value


def in_bare_guest(visits: Visits) -> None:
    CONFIG_FILE.write_text("")
    cures = visits.visit("as it is")
    sh(cures["workqueues"])
    sh("echo 0 >/proc/sys/kernel/numa_balancing")
    sh(f"taskset -pc {RESERVED} 1 >/dev/null")
    visits.note("managed interrupts", move_interrupts())
    CONFIG_FILE.write_text(CONFIG)
    with StateFolderLock(STATE_FOLDER):
        visits.visit("prepared")
    visits.note("pid of the agent", os.getpid())

    open_the_way(Path.cwd(), Path(sys.prefix))
    visits.visit("another user", "setpriv", "--reuid=65534", "--clear-groups")
    beside_others(visits)
    with_a_partition(visits)


def in_spoilt_guest(visits: Visits) -> None:
    CONFIG_FILE.write_text(CONFIG)
    STATE_FOLDER.mkdir(parents=True)
    without_its_machine(visits)
    with_other_mounts(visits)


def open_the_way(*folders: Path) -> None:
    """Let every user reach folders, such as a checkout below /root."""
    for above in {parent for folder in folders for parent in folder.parents}:
        above.chmod(above.stat().st_mode | 0o011)


def move_interrupts() -> list[int]:
    """Move what can be moved to the reserved CPUs; return what the kernel spreads by itself.

    It refuses with EIO in Linux 6.1 and with EPERM in 6.12.
    """
    Path("/proc/irq/default_smp_affinity").write_text(RESERVED_MASK)
    refused = []
    for file in Path("/proc/irq").glob("*/smp_affinity_list"):
        try:
            file.write_text(RESERVED)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPERM):
                raise
            refused.append(int(file.parent.name))
    return sorted(refused)


def beside_others(visits: Visits) -> None:
    started = []
    for name in ("koordlet", "irqbalance", "nri-resource-policy-balloons", "kubelet"):
        program = visits.folder / name
        shutil.copy("/usr/bin/sleep", program)
        started.append(subprocess.Popen([program, "1000"]))
    agent = visits.folder / "numalet"
    shutil.copy("/bin/sh", agent)
    waiting = [str(agent), "-c", "read line", "run"]
    started += [subprocess.Popen(waiting, stdin=subprocess.PIPE) for _ in range(2)]
    KUBELET_FOLDER.mkdir()
    (KUBELET_FOLDER / "cpu_manager_state").write_text('{"policyName":"static","checksum":0}')
    visits.visit("beside others")
    for process in started:
        process.kill()
        process.wait()
    shutil.rmtree(KUBELET_FOLDER)


def with_a_partition(visits: Visits) -> None:
    group = CGROUPS / "apart"
    sh(
        f"echo +cpuset >{CGROUPS}/cgroup.subtree_control; mkdir {group}; echo 2-3 >{group}/cpuset.cpus"
    )
    (group / "cpuset.cpus.partition").write_text("root")
    visits.visit("partition")
    group.rmdir()
    sh(f"echo -cpuset >{CGROUPS}/cgroup.subtree_control")


def without_its_machine(visits: Visits) -> None:
    old, release = visits.folder / "osrelease", "/proc/sys/kernel/osrelease"
    old.write_text("4.18.0-553.el8.x86_64\n")
    sh(f"mount --bind {old} {release}; mount -t tmpfs none /sys/devices/system/cpu")
    visits.visit("old and blind")
    sh(f"umount {release} /sys/devices/system/cpu")


def with_other_mounts(visits: Visits) -> None:
    written = {"version": 1, "boot_id": boot_id(), "values": [OVERWRITTEN]}
    JOURNAL.write_text(json.dumps(written))
    sh(f"mount -o remount,bind,ro {CGROUPS}")
    visits.visit("read-only")
    sh(f"mount -o remount,bind,rw {CGROUPS}")

    inside = f'umount {CGROUPS}; mount -t cgroup2 none {CGROUPS}; exec "$@"'
    box = f"mkdir -p {CGROUPS}/box; echo $$ >{CGROUPS}/box/cgroup.procs"
    enter = f"{box}; exec unshare --cgroup --mount sh -ec '{inside}' sh \"$@\""
    visits.visit("own namespace", "sh", "-ec", enter, "sh")
    (CGROUPS / "box").rmdir()

    sh(f"umount {CGROUPS}; mount -t tmpfs none {CGROUPS}; cd {CGROUPS}; mkdir cpu unified")
    sh(f"mount -t cgroup -o cpu none {CGROUPS}/cpu; mount -t cgroup2 none {CGROUPS}/unified")
    visits.visit("hybrid")
    sh(f"umount {CGROUPS}/unified; rmdir {CGROUPS}/unified")
    visits.visit("v1")


def in_systemd_guest(visits: Visits) -> None:
    CONFIG_FILE.write_text(CONFIG)
    cures = visits.visit("as it is")
    sh(cures["host-services"])
    visits.visit("prepared")

    scope = "systemd-run --quiet --scope --slice=kubepods-pod1.slice --unit=cri-containerd-abc"
    subprocess.Popen([*scope.split(), "-pDelegate=yes", "-pAllowedCPUs=2-3", "sleep", "1000"])
    sh(f"until grep -qs 2-3 {CGROUPS}/kubepods.slice/*/cri-*/cpuset.cpus; do sleep 0.1; done")
    visits.visit("a container pinned by its runtime")
    sh(
        "systemctl stop cri-containerd-abc.scope; systemctl set-property kubepods.slice AllowedCPUs=0-3"
    )
    visits.visit("kubepods.slice pinned")


KINDS = {"bare": in_bare_guest, "systemd": in_systemd_guest, "spoilt": in_spoilt_guest}


def main() -> None:
    kind, folder = sys.argv[1:]
    visits = Visits(Path(folder))
    try:
        KINDS[kind](visits)
    finally:
        (visits.folder / "visits.json").write_text(json.dumps(visits.said))


if __name__ == "__main__":
    main()
