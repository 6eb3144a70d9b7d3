"""What `numalet topology` shows in a guest is what QEMU was told to make, and a pod has its place there."""

import json
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.topology import Core
from agent.node.sysfs import read_topology
from agent.simulation.description import parse_description
from agent.simulation.machine import topology_of
from hack.lab.topology import TOPOLOGIES, GuestTopology

from .agent_process import CALM_CONFIG
from .rig import Outcome, in_guest, side_by_side

pytestmark = pytest.mark.vm

MIB = 1 << 20
CGROUPS = "/sys/fs/cgroup/numalet.slice/kubepods"
SHOW = "set -e\nnumalet topology -o json"
CHECK_UP = """
numalet doctor -o json >%s/doctor.json
"""
VISITED = [name for name in TOPOLOGIES if name != "sample"]
"""That one is 2n with more cores, and `test_lab` looks where its kernel lets the README's pod run."""
PLACED = ("4n", "memory-only")
STARTED = (*PLACED, "memory-less")
"""Those in which no other story is told."""
CONFIG = CALM_CONFIG.replace('reservedSystemCPUs: "0"', 'reservedSystemCPUs: "0-2"')
"""One CPU of node 0 is left: the pod belongs to node 1, and nowhere where that has no memory."""
START = """
cd %s
numalet run --once --config config.yaml --pods pods >log 2>&1
"""
PLACE = f"""
for name in database side; do
  cgroup=$(echo {CGROUPS}/pod*/$name)
  sh -c 'echo $$ >$0/cgroup.procs; exec grep allowed_list /proc/self/status' $cgroup >$name
  cat $cgroup/cpu.max >>$name
done
"""
POD = """
apiVersion: v1
kind: Pod
metadata: {name: db}
spec:
  resources: {requests: {cpu: "2", memory: 128Mi}, limits: {cpu: "2", memory: 128Mi}}
  containers:
  - name: database
    resources: {limits: {cpu: "1", memory: 64Mi}}
  - name: side
"""
KERNEL_KEEPS = 0.15
"""At most so much of a node's memory the kernel keeps for itself and does not count in MemTotal."""


def told_cores(guest: GuestTopology) -> tuple[Core, ...]:
    """The cores, with one L3 cache a die."""
    threads: dict[tuple[int, int, int], list[int]] = {}
    for cpu, place in enumerate(guest.by_number()):
        threads.setdefault((place.socket, place.die, place.core), []).append(cpu)
    homes = {node.die: i for i, node in enumerate(guest.nodes)}
    cores = (
        Core(
            cpus=CPUSet(cpus),
            node=homes[socket, die],
            socket=socket,
            uncore=socket * guest.dies + die,
        )
        for (socket, die, _), cpus in threads.items()
    )
    return tuple(sorted(cores, key=lambda core: min(core.cpus)))


def told_distances(guest: GuestTopology) -> list[tuple[int, ...]]:
    ids = range(len(guest.nodes))
    return [tuple(guest.distance(a, b) for b in ids) for a in ids]


def told_hugepages(guest: GuestTopology) -> list[int]:
    return [node.hugepages for node in guest.nodes]


def kernel_of(name: str) -> str:
    return "6.12" if name in ("4n", "hugepages") else "6.1"


@dataclass(frozen=True, slots=True)
class Visit:
    """What was seen in a guest."""

    guest: GuestTopology
    outcome: Outcome
    folder: Path

    def program(self, container: str) -> tuple[CPUSet, str, str]:
        """Return where a container's program may run, on which nodes its memory is, and its quota."""
        cpus, mems, quota = (self.folder / container).read_text().splitlines()
        return CPUSet.parse(cpus.split()[1]), mems.split()[1], quota


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[Visit]]:
    def visit(name: str, folder: Path) -> Visit:
        (folder / "config.yaml").write_text(CONFIG)
        (folder / "pods").mkdir()
        (folder / "pods/db.yaml").write_text(POD)
        guest, command = TOPOLOGIES[name], SHOW + CHECK_UP % folder
        if name in STARTED:
            command += START % folder
        if name in PLACED:
            command += PLACE
        outcome = in_guest(guest, command, kernel=kernel_of(name), results=folder)
        return Visit(guest, outcome, folder)

    return side_by_side(visit, VISITED, tmp_path_factory)


@pytest.mark.parametrize("name", VISITED)
def test_numalet_shows_the_machine_that_qemu_was_told_to_make(
    name: str, visits: dict[str, Future[Visit]], tmp_path: Path
) -> None:
    visit = visits[name].result()
    guest, outcome = visit.guest, visit.outcome.succeeded()
    assert not outcome.stderr  # no notes, and libnuma agrees

    shown = topology_of(parse_description(outcome.stdout, name="guest"), tmp_path, read_topology)

    assert shown.cores == told_cores(guest)
    assert shown.socket_count == guest.sockets
    assert [node.id for node in shown.nodes] == list(range(len(guest.nodes)))
    assert [node.distances for node in shown.nodes] == told_distances(guest)
    assert [node.hugepages[2048] for node in shown.nodes] == told_hugepages(guest)
    for node, told in zip(shown.nodes, guest.nodes, strict=True):
        told_bytes = told.memory_mib * MIB
        assert told_bytes * (1 - KERNEL_KEEPS) <= node.memory_bytes <= told_bytes


@pytest.mark.parametrize("name", VISITED)
def test_the_doctor_has_seen_the_same_machine_and_that_it_is_ready(
    name: str, visits: dict[str, Future[Visit]]
) -> None:
    visit = visits[name].result()
    visit.outcome.succeeded()
    said = json.loads((visit.folder / "doctor.json").read_text())
    nodes = NodeSet(range(len(visit.guest.nodes)))
    cpus = CPUSet(range(len(visit.guest.by_number())))

    kernel, topology = (
        next(finding for finding in said["findings"] if finding["check"] == check)
        for check in ("kernel", "topology")
    )

    assert said["ready"]
    assert kernel["level"] == ("ok" if kernel_of(name) == "6.12" else "warning")
    assert f"Linux {kernel_of(name)}." in kernel["what"]
    assert topology["level"] == "ok"
    assert topology["what"] == f"CPUs {cpus} are online, NUMA nodes {nodes}"


@pytest.mark.parametrize("name", PLACED)
def test_a_pod_has_its_cpus_and_its_memory_on_one_node_of_it(
    name: str, visits: dict[str, Future[Visit]]
) -> None:
    visit = visits[name].result()
    visit.outcome.succeeded()
    (own, mems, quota), (shared, side_mems, _) = map(visit.program, ("database", "side"))

    node = visit.guest.nodes[int(mems)]
    on_node = {
        cpu
        for cpu, place in enumerate(visit.guest.by_number())
        if (place.socket, place.die) == node.die
    }
    assert (len(own), len(shared), own.isdisjoint(shared)) == (1, 1, True)
    assert set(own | shared) <= on_node
    assert (mems, side_mems) == ("1", "1")
    assert quota == "max 100000"


def test_a_pod_whose_cpus_would_be_where_no_memory_is_is_rejected(
    visits: dict[str, Future[Visit]],
) -> None:
    visit = visits["memory-less"].result()
    visit.outcome.succeeded()

    (line,) = (
        line for line in (visit.folder / "log").read_text().splitlines() if "rejected" in line
    )
    assert "TopologyAffinityError" in line
