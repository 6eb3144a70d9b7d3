"""Another CPU manager is named, and not enforced over unless that is forced or it is kept apart."""

from dataclasses import replace

import pytest

from agent.config import load
from agent.core.cpuset import CPUSet
from agent.core.findings import Level, is_ready
from agent.core.startup import Rules
from agent.errors import InputError
from agent.node import procfs
from agent.place import KUBERNETES, Place, other_managers, why_only_observing
from agent.simulation.kernel import SimulatedKernel
from agent.whatif import configure
from tests.reconciler.rig import two_sockets

from .ailments import KUBELET, writing
from .made_up import MadeUpNode

STATIC = writing(f"{KUBELET}/cpu_manager_state", '{"policyName":"static"}')


def fence(node: MadeUpNode, cpus: str) -> None:
    with node.config.open("a") as file:
        file.write(f"coexistence: {{fence: '{cpus}'}}\n")


def place_on(node: MadeUpNode, rules: Rules) -> Place:
    kernel = SimulatedKernel(rules.topology, node.root / "cgroups")
    procfs.use_proc_root(node.root / "proc")
    return Place(
        mode=KUBERNETES,
        topology=rules.topology,
        cgroups=kernel,
        cgroup_root=kernel.root,
        memory=kernel.memory,
    )


@pytest.mark.parametrize("choice", ["observe", "force", "fence"])
def test_all_others_are_named_and_only_without_a_word_from_the_operator_is_nothing_enforced(
    node: MadeUpNode, choice: str
) -> None:
    STATIC(node)
    node.run("koordlet")
    node.run("numad")  # gets in the way only
    config = replace(load(None), host_root=node.root)
    config = replace(config, coexistence=choice)  # type: ignore[arg-type]  # one of the three

    found = other_managers(place_on(node, two_sockets()), config)

    named = [finding.subject for finding in found if finding.level is Level.PROBLEM]
    assert named == ["kubelet", "koordlet"]
    why_not = why_only_observing(found, config)
    assert len(why_not) == (2 if choice == "observe" else 0)
    assert all("numalet only observes, since" in sentence for sentence in why_not)


def test_in_a_fence_the_doctor_says_what_is_left_to_do_and_the_node_is_ready(
    node: MadeUpNode,
) -> None:
    STATIC(node)
    node.run("koordlet")
    fence(node, "2-3,6-7")

    findings = node.examine()

    told = {f.subject or f.check: f for f in findings if f.check in ("kubelet", "cpu-managers")}
    assert {f.level for f in told.values()} == {Level.WARNING}
    assert all("numalet keeps to CPUs 2-3,6-7" in f.sentence for f in told.values())
    assert all("but not to a part of the memory" in f.sentence for f in told.values())
    assert any("tell koordlet to leave CPUs 2-3,6-7 alone" in f.cure for f in told.values())
    assert is_ready(findings)


def test_a_fence_takes_nothing_that_is_reserved_or_not_there(node: MadeUpNode) -> None:
    fence(node, "0,2,64")
    topology = node.facts().topology
    assert not isinstance(topology, str)

    config, rules = configure(node.config, topology)

    assert CPUSet.from_bits(rules.topology.cpus.bits & ~rules.withheld) == CPUSet([2])
    assert "this machine has no CPUs 64 (yet)" in config.warnings[-1]


def test_a_fence_in_which_nothing_can_be_given_is_refused(node: MadeUpNode) -> None:
    fence(node, "0,4")
    with pytest.raises(InputError, match="has no CPU of this machine that is not reserved"):
        node.examine()
