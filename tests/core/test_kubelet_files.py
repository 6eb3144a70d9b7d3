import json
from collections.abc import Callable
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.core.cpuset import CPUSet, NodeSet
from agent.core.kubelet_files import (
    CPU_FILE,
    CpuAssignments,
    MemoryAssignments,
    load_cpu,
    load_memory,
    node_state,
    render_cpu,
    render_memory,
)
from agent.core.kubelet_formats import KubeletFileError
from agent.core.pods import PodUID
from agent.core.state import Block, MemoryTable, NodeMemory, NodeState, PodEntry
from tests.core.kubelet_vectors import written_by_the_kubelet
from tests.core.state_strategies import states

NO_CPUS, NO_MEMORY = CpuAssignments(), MemoryAssignments()

# from pkg/kubelet/cm/memorymanager/state/state_checkpoint_test.go of Kubernetes 1.37
UPSTREAM_BODY = (
    '"policyName":"static","machineState":{"0":{"numberOfAssignments":0,"memoryMap":{"memory":'
    '{"total":2048,"systemReserved":512,"allocatable":1536,"reserved":512,"free":1024}},'
    '"cells":[]}},"entries":{"pod":{"container1":[{"numaAffinity":[0],"type":"memory","size":512}]}}'
)
UPSTREAM_POD = (
    '"podEntries":{"pod":{"memoryBlocks":[{"numaAffinity":[0],"type":"memory","size":512}]}}'
)

BLOCK = Block(NodeSet([0]), "memory", 512)
STATE = NodeState(
    default=CPUSet.parse("0-1,6-7"),
    pods={PodUID("p1"): PodEntry(pool=CPUSet.parse("2-5"), cpus={"db": CPUSet.parse("2-3")})},
)


def rendered_again(name: str, text: str, *, gate: bool) -> str:
    policy_name = json.loads(text)["policyName"]
    if name == CPU_FILE:
        cpu = load_cpu(text, policy_name=policy_name, pod_level=gate)
        state = node_state(cpu, NO_MEMORY)
        return render_cpu(state, policy_name=policy_name, version=3 if gate else 2)
    memory = load_memory(text, policy_name=policy_name, pod_level=gate)
    state = node_state(NO_CPUS, memory)
    return render_memory(state, policy_name=policy_name, version=2 if gate else 1)


def refusal(load: Callable[[], object]) -> str:
    """Return what stands between the fixed parts of the kubelet's error."""
    with pytest.raises(KubeletFileError) as caught:
        load()
    text = str(caught.value)
    start, end = "could not restore state from checkpoint: ", ", please drain this node"
    assert text.startswith(start)
    return text[len(start) : text.index(end)]


def test_every_recorded_file_is_loaded_and_rendered_again_to_the_last_byte() -> None:
    files = list(written_by_the_kubelet())
    differing = [
        (scenario, name)
        for scenario, name, text, gate in files
        if rendered_again(name, text, gate=gate) != text
    ]
    assert differing == []
    assert len(files) > 800


def test_every_recorded_file_is_refused_with_another_checksum() -> None:
    for _, name, text, gate in written_by_the_kubelet():
        wrong = json.dumps({**json.loads(text), "checksum": json.loads(text)["checksum"] + 1})
        with pytest.raises(KubeletFileError):
            rendered_again(name, wrong, gate=gate)


@pytest.mark.parametrize(
    ("policy", "default", "checksum"),
    [
        ("static", "0-63", 1058907510),
        ("static", "0-1", 1636926438),
        ("none", "", 1353318690),
        ("none", "4-6", 354655845),
    ],
)
def test_v2_checksums_are_those_of_files_in_public_bug_reports(
    policy: str, default: str, checksum: int
) -> None:
    text = render_cpu(NodeState(default=CPUSet.parse(default)), policy_name=policy, version=2)
    assert json.loads(text)["checksum"] == checksum


def test_upstreams_own_memory_files_are_read_in_every_version() -> None:
    data = json.dumps("{" + UPSTREAM_BODY + "}")
    v1 = f'{{{UPSTREAM_BODY},"checksum":4215593881}}'
    v2 = f'{{{UPSTREAM_BODY},{UPSTREAM_POD},"checksum":1278640530}}'
    # what lies beside data is damaged on purpose, as upstream's test does
    v3 = f'{{"policyName":"other","checksum":1234,"data":{data},"dataChecksum":1849615440}}'

    found = [load_memory(text, policy_name="static") for text in (v1, v2, v3)]

    assert [m.containers for m in found] == [{"pod": {"container1": (BLOCK,)}}] * 3
    assert [m.pods for m in found] == [{}, {"pod": (BLOCK,)}, {}]
    assert found[0].machine == found[1].machine == found[2].machine
    assert found[0].machine[0].tables["memory"] == MemoryTable(2048, 512, 1536, 512, 1024)


@pytest.mark.parametrize(
    ("tail", "error"),
    [
        ('"dataChecksum":1234', "failed to deserialize memory manager checkpoint data: unexpected"),
        ('"data":"{","dataChecksum":1', "failed to deserialize memory manager checkpoint data: "),
        ('"data":"[]"', "failed to deserialize memory manager checkpoint data: json: cannot"),
        ('"data":"{}"', "checkpoint is corrupted"),
        ('"data":"{}","dataChecksum":1234', "checkpoint is corrupted"),
    ],
)
def test_a_file_with_damaged_data_is_refused_although_the_rest_is_whole(
    tail: str, error: str
) -> None:
    text = f'{{{UPSTREAM_BODY},"checksum":4215593881,{tail}}}'
    found = refusal(lambda: load_memory(text, policy_name="static"))
    assert found.startswith(f"could not load v3 checkpoint: {error}")


def test_what_is_written_for_1_37_is_whole_for_it_and_readable_for_older_kubelets() -> None:
    text = render_cpu(STATE, version=4)

    assert node_state(load_cpu(text), NO_MEMORY) == STATE

    older = {k: v for k, v in json.loads(text).items() if not k.startswith("data")}
    assert json.dumps(older, separators=(",", ":")) == render_cpu(STATE, version=2)
    assert load_cpu(json.dumps(older), pod_level=False) == CpuAssignments(
        default=STATE.default, containers={PodUID("p1"): {"db": CPUSet.parse("2-3")}}
    )


def test_with_the_gate_off_a_file_with_pools_is_refused_and_pools_of_newer_files_are_left_out() -> (
    None
):
    assert refusal(lambda: load_cpu(render_cpu(STATE), pod_level=False)).startswith("json: ")
    assert load_cpu(render_cpu(STATE, version=4), pod_level=False).pods == {}


def test_no_file_is_an_empty_table_and_an_empty_file_is_an_error() -> None:
    assert load_cpu(None) == NO_CPUS
    assert load_memory(None) == NO_MEMORY
    assert refusal(lambda: load_cpu("")) == "unexpected end of JSON input"


def test_member_names_match_in_any_case_and_unknown_ones_are_skipped() -> None:
    text = '{"POLICYNAME":"static","defaultcpuset":"0-3","new":[1],"Checksum":0}'
    assert load_cpu(text).default == CPUSet.parse("0-3")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"policyName":"static","defaultCpuSet":"3-1"}', 'invalid range "3-1" (3 > 1)'),
        ('{"policyName":"static","defaultCpuSet":"0-70000"}', "CPU number 70000 is above 65535"),
        ('{"policyName":"static","defaultCpuSet":"0 1"}', 'parsing "0 1": invalid syntax'),
        ('{"policyName":"static","defaultCpuSet":"0:1/2"}', 'parsing "0:1/2": invalid syntax'),
    ],
)
def test_cpu_lists_are_read_by_gos_rules_and_not_by_the_kernels(text: str, error: str) -> None:
    quoted = json.dumps(json.loads(text)["defaultCpuSet"])
    found = refusal(lambda: load_cpu(text))
    assert found.startswith(f"could not parse default cpu set {quoted}: ")
    assert found.endswith(error)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"policyName":"x"} y', "invalid character 'y'"),
        ('{"policyName":"stat', "unexpected end of JSON input"),
        ('{"checksum":NaN}', "invalid character 'N'"),
        ("[" * 100_000, "exceeded max depth"),
        ('{"checksum":-1}', "json: cannot unmarshal number into Go struct field "),
        ('{"checksum":' + "9" * 5000 + "}", "json: cannot unmarshal number into Go struct field "),
        ('{"checksum":1.5}', "json: cannot unmarshal number into Go struct field "),
        ('{"checksum":true}', "json: cannot unmarshal bool into Go struct field "),
        ('{"entries":[]}', "json: cannot unmarshal array into Go struct field "),
        ('"text"', "json: cannot unmarshal string into Go value of type state."),
    ],
    ids=lambda text: text[:30],
)
def test_what_go_refuses_is_refused_and_never_anything_else(text: str, error: str) -> None:
    assert refusal(lambda: load_cpu(text)).startswith(error)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ('"machineState":{"0":null}', "machineState of NUMA node 0 holds null"),
        ('"machineState":{"0":{"memoryMap":{"memory":null}}}', "machineState of NUMA node 0 holds"),
        ('"machineState":{"0":{"cells":[-1]}}', "-1 is not the number of a NUMA node"),
        ('"machineState":{"zero":{}}', "json: cannot unmarshal number zero into Go"),
        ('"entries":{"p":{"c":[{"numaAffinity":[99999]}]}}', "99999 is not the number of a NUMA"),
        ('"entries":{"p":{"c":[{"numaAffinity":0}]}}', "json: cannot unmarshal number into Go"),
    ],
)
def test_memory_tables_that_would_crash_the_kubelet_are_refused(body: str, error: str) -> None:
    text = f'{{"policyName":"Static",{body},"checksum":0}}'
    assert refusal(lambda: load_memory(text)).startswith(error)


def test_nulls_are_nothing_and_are_hashed_as_nil() -> None:
    text = (
        '{"policyName":"Static","machineState":{"0":{"memoryMap":null,"cells":null}},'
        '"entries":{"p":{"c":null},"q":null},"checksum":0}'
    )
    found = load_memory(text)
    assert found.machine == {0: NodeMemory(0, NodeSet(), {})}
    assert found.containers == {"p": {"c": ()}, "q": {}}


def test_pods_that_could_be_read_are_kept_although_an_older_version_fits_at_last() -> None:
    text = (
        '{"policyName":"static","defaultCpuSet":"0-1",'
        '"podEntries":{"p1":{"cpuSet":"2-3"},"p2":{"cpuSet":"x"}},"checksum":0}'
    )
    assert load_cpu(text).pods[PodUID("p1")] == CPUSet.parse("2-3")


@pytest.mark.parametrize("gate", [True, False])
def test_a_file_by_container_id_is_read_with_the_ids_of_what_runs(*, gate: bool) -> None:
    text = '{"policyName":"static","defaultCpuSet":"0","entries":{"abc":"1-2"},"checksum":0}'
    ids = {"abc": (PodUID("p1"), "db")}

    found = load_cpu(text, pod_level=gate, container_ids=ids)

    assert found.containers == {"p1": {"db": CPUSet.parse("1-2")}}
    assert refusal(lambda: load_cpu(text, pod_level=gate)).endswith(
        "containerID 'abc' not found in initial containers list"
    )


def test_text_is_escaped_as_go_escapes_it() -> None:
    state = NodeState(
        default=CPUSet([0]), pods={PodUID("<&>\u2028é"): PodEntry(cpus={"c": CPUSet([1])})}
    )
    text = render_cpu(state)
    assert '"\\u003c\\u0026\\u003e\\u2028é"' in text
    assert node_state(load_cpu(text), NO_MEMORY) == state


def test_half_characters_are_read_as_go_reads_them() -> None:
    text = (
        '{"policyName":"static","defaultCpuSet":"0","entries":{"\\ud800":{"c":"1"}},"checksum":0}'
    )
    assert list(load_cpu(text).containers) == ["\ufffd"]


@settings(deadline=None)
@given(state=states(), cpu_version=st.sampled_from([3, 4]), memory_version=st.sampled_from([2, 3]))
def test_any_state_survives_both_files(
    state: NodeState, cpu_version: Literal[3, 4], memory_version: Literal[2, 3]
) -> None:
    cpu = load_cpu(render_cpu(state, version=cpu_version))
    memory = load_memory(render_memory(state, version=memory_version))
    assert node_state(cpu, memory) == state


@settings(deadline=None)
@given(text=st.text() | st.from_regex(r"\{(\"\w+\":(null|1|\"a\"|\{\}|\[\]),?)*\}"))
def test_no_text_makes_loading_fail_otherwise_than_by_a_kubelet_error(text: str) -> None:
    for load in (load_cpu, load_memory):
        try:
            load(text, policy_name="")
        except KubeletFileError:
            continue
