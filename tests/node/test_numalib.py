import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from agent.core.cpuset import CPUSet
from agent.core.topology import Core, NodeTopology, NumaNode
from agent.node.numalib import CrossCheck, cross_check
from agent.node.sysfs import read_topology

TWO_NODES = NodeTopology(
    nodes=(
        NumaNode(id=0, memory_bytes=1 << 30, distances=(10, 21)),
        NumaNode(id=8, memory_bytes=1 << 30, distances=(21, 10)),
    ),
    cores=tuple(Core(cpus=CPUSet([i]), node=8 * (i // 2), socket=0, uncore=0) for i in range(4)),
    socket_count=1,
)
AGREED = {
    "max_node": 8,
    "distances": [[10, 21], [21, 10]],
    "cpus": [[0, 1], [2, 3]],
    "allowed": [0, 1, 2, 3],
}


def child(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def answered(**changed: object) -> CrossCheck:
    answer = json.dumps(AGREED | changed)
    return cross_check(TWO_NODES, command=child(f"print({answer!r})"))


def test_an_answer_that_agrees_has_no_differences() -> None:
    assert answered() == CrossCheck()


def test_each_difference_is_a_sentence() -> None:
    found = answered(max_node=1, distances=[[10, 21], [40, 10]], cpus=[[0, 1, 2], []])

    assert found.unavailable == ""
    assert found.differences == (
        "the highest NUMA node is 1 for libnuma, 8 in sysfs",
        "the distance from NUMA node 8 to 0 is 40 for libnuma, 21 in sysfs",
        "the CPUs of NUMA node 0 are 0-2 for libnuma, 0-1 in sysfs",
        "the CPUs of NUMA node 8 are none for libnuma, 2-3 in sysfs",
    )


def test_cpus_outside_the_childs_own_cpuset_are_not_compared() -> None:
    assert answered(allowed=[0, 2], cpus=[[0], [2]]).differences == ()


def test_a_distance_that_libnuma_does_not_know_is_no_difference() -> None:
    assert answered(distances=[[10, 0], [0, 10]]).differences == ()


def test_the_child_is_asked_only_about_nodes_that_sysfs_shows() -> None:
    echo = "import json, sys; print(json.dumps('asked: ' + ' '.join(sys.argv[1:])))"

    assert cross_check(TWO_NODES, command=child(echo)).unavailable == "asked: 0 8"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "was ended: Segmentation"),
        ("raise SystemExit('numa: oops')", "failed: numa: oops"),
        ("print('no JSON')", "cannot be understood"),
        ("print('null')", "cannot be understood"),
        ("print('{\"max_node\": 0}')", "cannot be understood"),
        (f"print({json.dumps(AGREED | {'cpus': [[0]]})!r})", "cannot be understood"),
        (f"print({json.dumps(AGREED | {'cpus': [[-1], []]})!r})", "cannot be understood"),
        ("print('\"no libnuma\"')", "no libnuma"),
    ],
)
def test_a_child_that_cannot_answer_is_an_answer(code: str, why: str) -> None:
    found = cross_check(TWO_NODES, command=child(code))

    assert why in found.unavailable
    assert found.differences == ()


def test_a_child_that_never_answers_is_ended() -> None:
    found = cross_check(TWO_NODES, command=child("import signal; signal.pause()"), timeout_s=0.2)

    assert found.unavailable == "libnuma gave no answer within 0.2 s"


def test_a_program_that_is_not_there_is_an_answer(tmp_path: Path) -> None:
    assert "cannot start" in cross_check(TWO_NODES, command=(str(tmp_path / "no"),)).unavailable


def test_a_machine_without_py_libnuma_is_told_what_to_install() -> None:
    without = (
        "import runpy, sys; sys.modules['numa'] = None;"
        "runpy.run_module('agent.node.numalib', run_name='__main__')"
    )

    found = cross_check(TWO_NODES, command=child(without))
    assert found.unavailable.startswith("py-libnuma cannot be used (")
    assert found.unavailable.endswith("): install libnuma1")


def test_libnuma_agrees_about_this_machine_and_sees_a_lie() -> None:
    here = read_topology()
    found = cross_check(here)
    if found.unavailable:
        pytest.skip(found.unavailable)
    first = replace(here.nodes[0], distances=tuple(d + 1 for d in here.nodes[0].distances))
    lie = cross_check(replace(here, nodes=(first, *here.nodes[1:])))

    assert found.differences == ()
    assert len(lie.differences) == len(here.nodes)
    assert "the distance from NUMA node 0 to 0 is 10 for libnuma, 11 in sysfs" in lie.differences
