"""Files of real machines, where they are at hand, against their descriptions and against lstopo.

The captures are those of hwloc (tests/hwloc/linux), util-linux (tests/ts/lscpu/dumps) and
nri-plugins (pkg/sysfs); they are read from a folder beside the checkout.
"""

import re
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agent.errors import TopologyError
from agent.node.sysfs import read_topology
from agent.simulation.description import Description, load_description
from agent.simulation.machine import topology_of
from tests.machines.opinions import Opinion

CAPTURES = Path(__file__).resolve().parents[3] / "shared/captures"
ARCHIVES = {path.name: path for path in sorted(CAPTURES.glob("*/*.tar.*"))}
ABSENT = "no captures of real machines in ../shared/captures"
BROKEN = "8em64t-2s2ca2c-buggynuma.tar.bz2"
WANTED = re.compile(
    r"/sys/devices/system/cpu/([^/]+$|cpu\d+/(online$|topology/|cache/))"
    r"|/sys/devices/system/node/|/sys/kernel/mm/|/proc/([^/]+$|self/)"
)

# Where hwloc and the reader differ on purpose, and why.
NO_PACKAGE = "the package is -1: hwloc turns to core_siblings, the kubelet sees one socket"
EXPLAINED: dict[str, tuple[tuple[str, ...], str]] = {
    "offline-cpu0-node0.tar.bz2": (
        ("cores", "packages", "l3"),
        "hwloc keeps the CPUs of the offline node, the kubelet does not",
    ),
    "64amd64-4s2n4ca2co.tar.bz2": (
        ("cores",),
        "hwloc splits the Bulldozer modules, which the kernel lists as threads of one core",
    ),
    "20s390-2g6s4c.tar.bz2": (("packages",), NO_PACKAGE),
    "256ppc-8n8s4t.tar.bz2": (("packages",), NO_PACKAGE),
    "ppc64-POWER7.tar.gz": (("packages",), NO_PACKAGE),
}

Extract = Callable[[str], Path]


def descriptions() -> dict[str, Description]:
    """Return the descriptions by the archive that they were taken from."""
    found = {}
    for path in sorted((Path(__file__).parents[1] / "data/topologies").glob("*.yaml")):
        description = load_description(path)
        archive = re.search(r"/(?:test-data-)?([^/ ]+\.tar\.\w+)", description.provenance)
        if archive and archive[1] in ARCHIVES:
            found[archive[1]] = description
    return found


@pytest.fixture(scope="session")
def extract(tmp_path_factory: pytest.TempPathFactory) -> Extract:
    """Unpack an archive, once; return the folder with ``sys`` and ``proc``."""
    folders: dict[str, Path] = {}

    def unpacked(name: str) -> Path:
        if name not in folders:
            folder = tmp_path_factory.mktemp("capture")
            with tarfile.open(ARCHIVES[name]) as archive:
                for member in archive:
                    place = folder / Path(*Path(member.name).parts[1:])
                    content = archive.extractfile(member) if member.isreg() else None
                    if content and WANTED.search(member.name) and ".." not in place.parts:
                        place.parent.mkdir(parents=True, exist_ok=True)
                        place.write_bytes(content.read())
            folders[name] = folder
        return folders[name]

    return unpacked


def skip_unless_there() -> pytest.MarkDecorator:
    return pytest.mark.skipif(not ARCHIVES, reason=ABSENT)


@skip_unless_there()
@pytest.mark.parametrize("name", sorted(set(descriptions()) - {BROKEN}) or ["none"])
def test_a_real_machine_is_read_as_others_have_described_it(
    name: str, extract: Extract, tmp_path: Path
) -> None:
    description = descriptions()[name]
    read = Opinion.ours(read_topology(extract(name) / "sys"))
    described = Opinion.ours(topology_of(description, tmp_path, read_topology))
    if not any(node.mem_kib for node in (description.nodes or {}).values()):
        # Memory is not part of these; a description assumes some.
        described = replace(
            described,
            nodes={i: (bits, read.nodes[i][1]) for i, (bits, _) in described.nodes.items()},
        )

    assert read == described


@skip_unless_there()
@pytest.mark.parametrize("name", sorted(set(ARCHIVES) - {BROKEN}) or ["none"])
def test_lstopo_reads_the_same_from_a_real_machine_but_for_what_is_explained(
    name: str, extract: Extract
) -> None:
    program = shutil.which("lstopo-no-graphics")
    if program is None:
        pytest.skip("lstopo-no-graphics is not installed (Debian package hwloc-nox)")
    theirs = Opinion.lstopo(program, extract(name))
    ours = Opinion.ours(read_topology(extract(name) / "sys")).compared_with(theirs)
    differing, _ = EXPLAINED.get(name, ((), ""))

    assert replace(ours, **{key: getattr(theirs, key) for key in differing}) == theirs


@skip_unless_there()
def test_a_machine_whose_firmware_repeats_all_cpus_in_every_node_is_refused(
    extract: Extract,
) -> None:
    with pytest.raises(TopologyError, match="firmware"):
        read_topology(extract(BROKEN) / "sys")
