"""A configuration file says what it says; what it does not say is numalet's default."""

from pathlib import Path

import pytest

from agent.config import AgentConfig, describe, load
from agent.core.cpuset import CPUSet
from agent.errors import InputError

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "samples"
EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "examples" / "config.yaml"
KUBELET = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
AGENT = "apiVersion: numalet.io/v1alpha1\nkind: AgentConfiguration\n"
GI = 1 << 30


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def loaded(file: Path, text: str) -> AgentConfig:
    file.write_text(text)
    return load(file)


def test_without_a_file_everything_is_a_default() -> None:
    config = load(None)

    policy = config.policy
    assert (policy.cpu_policy, policy.cpu_options, policy.memory_policy) == ("static", {}, "Static")
    assert (policy.topology_policy, policy.topology_scope) == ("best-effort", "pod")
    assert policy.gate("PodLevelResources")
    assert policy.gate("PodLevelResourceManagers")
    assert policy.departures == frozenset()
    assert config.pod_quota
    assert config.state_dir == Path("/var/lib/numalet")
    assert config.status_socket == Path("/run/numalet/status.sock")
    assert config.metrics_address == "127.0.0.1:9402"
    assert not config.observe
    assert config.warnings == ()
    assert set(config.origins.values()) == {"default"}


def test_a_kubelet_configuration_is_taken_as_it_stands() -> None:
    path = SAMPLES / "kubelet-config.yaml"

    config = load(path)

    policy = config.policy
    assert policy.cpu_policy == "static"
    assert policy.cpu_options == {"full-pcpus-only": "true"}
    assert policy.reserved_cpus == CPUSet([0])
    assert policy.memory_policy == "Static"
    assert policy.reserved_memory == ((0, {"memory": GI}),)
    assert (policy.topology_policy, policy.topology_scope) == ("single-numa-node", "pod")
    assert config.system_reserved == {"memory": 924 << 20}
    assert config.origins["cpuManagerPolicyOptions"] == f"{path}:8"
    assert config.origins["topologyManagerPolicyOptions"] == "default"
    assert config.warnings == ()


def test_what_a_kubelet_configuration_leaves_out_is_numalets_default() -> None:
    policy = load(SAMPLES / "kubelet-config-minimal.yaml").policy

    assert (policy.topology_policy, policy.topology_scope) == ("single-numa-node", "pod")
    assert (policy.cpu_policy, policy.memory_policy) == ("static", "Static")


def test_what_it_does_say_is_taken_as_said(file: Path) -> None:
    policy = loaded(
        file,
        KUBELET + "cpuManagerPolicy: none\nmemoryManagerPolicy: None\ntopologyManagerPolicy: none\n"
        "topologyManagerScope: container\nfeatureGates: {PodLevelResourceManagers: false}\n"
        "topologyManagerPolicyOptions: {max-allowable-numa-nodes: '12'}\n"
        "reservedSystemCPUs: 0-1,8\n",
    ).policy

    assert (policy.cpu_policy, policy.memory_policy) == ("none", "None")
    assert (policy.topology_policy, policy.topology_scope) == ("none", "container")
    assert policy.topology_options == {"max-allowable-numa-nodes": "12"}
    assert policy.reserved_cpus == CPUSet([0, 1, 8])
    assert policy.gate("PodLevelResources")
    assert not policy.gate("PodLevelResourceManagers")


def test_options_and_amounts_need_no_quotes(file: Path) -> None:
    config = loaded(
        file,
        KUBELET + "cpuManagerPolicyOptions: {full-pcpus-only: true}\nreservedSystemCPUs: 3\n"
        "kubeReserved: {cpu: 1.5, memory: 1073741824, ephemeral-storage: 1Gi, pid: 1000}\n",
    )

    assert config.policy.cpu_options == {"full-pcpus-only": "true"}
    assert config.policy.reserved_cpus == CPUSet([3])
    assert config.kube_reserved == {"cpu": 1500, "memory": GI}


def test_both_sections_may_stand_in_one_file(file: Path) -> None:
    config = loaded(
        file,
        KUBELET + "cgroupDriver: systemd\ncgroupRoot: /kubelet\n---\n" + AGENT + "stateDir: state\n"
        "statusSocket: /tmp/s\nmetricsAddress: '[::1]:1'\nobserve: true\nlogFormat: json\n"
        "logLevel: debug\ndriftInterval: 500ms\nminDefaultCPUs: 1\n"
        "departures: {pod_quota: false, init_apart: true, init_inside_app: false}\n",
    )

    assert (config.cgroup_driver, config.cgroup_root) == ("systemd", "/kubelet")
    assert (config.state_dir, config.status_socket) == (Path("state"), Path("/tmp/s"))
    assert (config.metrics_address, config.observe) == ("[::1]:1", True)
    assert (config.log_format, config.log_level) == ("json", "debug")
    assert (config.drift_interval_s, config.min_default_cpus) == (0.5, 1)
    assert config.policy.departures == {"init_apart"}
    assert not config.pod_quota
    assert config.origins["observe"] == f"{file}:11"


def test_an_empty_value_is_a_default(file: Path) -> None:
    config = loaded(file, KUBELET + "cpuManagerPolicy:\n---\n" + AGENT + "stateDir: null\n")

    assert config.policy == load(None).policy
    assert config.origins["stateDir"] == "default"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        (
            KUBELET + "cpuManagerPolicy: dynamic\n",
            3,
            "'dynamic' is not possible: write 'static' or",
        ),
        (KUBELET + "topologyManagerScope: node\n", 3, "write 'pod' or 'container'"),
        (KUBELET + "reservedSystemCPUs: 3-1\n", 3, "runs backwards"),
        (KUBELET + "reservedSystemCPUs: [1]\n", 3, "reservedSystemCPUs: write a list of CPUs"),
        (KUBELET + "systemReserved: {cpu: 1_0}\n", 3, "systemReserved: cpu: '1_0' is not a quanti"),
        (KUBELET + "systemReserved: {gpu: 1}\n", 3, "'gpu' cannot be reserved"),
        (KUBELET + "kubeReserved: 1\n", 3, "write a mapping"),
        (KUBELET + "kubeReserved: {cpu: true}\n", 3, "True is not a quantity"),
        (KUBELET + "evictionHard: {memory.available: 101%}\n", 3, "'101%' is not a threshold"),
        (KUBELET + "evictionHard: {memory.available: x%}\n", 3, "'x%' is not a threshold"),
        (KUBELET + "evictionHard: 1\n", 3, "1 is not a mapping"),
        (KUBELET + "featureGates:\n  Some: 'on'\n", 4, "featureGates.Some: 'on' is not true or"),
        (KUBELET + "cgroupRoot: /../other\n", 3, "cgroupRoot: '/../other' is no cgroup below"),
        (KUBELET + "cgroupRoot: a/./b\n", 3, 'without "." and ".."'),
        (KUBELET + "cgroupRoot: a//b\n", 3, "'a//b' is no cgroup below"),
        (KUBELET + "cgroupRoot: /sys/fs/cgroup/kubelet\n", 3, "without /sys/fs/cgroup before it"),
        (KUBELET + "cgroupRoot: 5\n", 3, "cgroupRoot: 5 is not a text"),
        (KUBELET + "reservedMemory:\n- limits: {}\n", 4, "numaNode: is missing"),
        (KUBELET + "reservedMemory:\n- numaNode: 0\n  limits: {cpu: 1}\n", 5, "'cpu' cannot be"),
        (KUBELET + "reservedMemory:\n- numaNode: -1\n  limits: {}\n", 4, "greater than or equal"),
        (AGENT + "statedir: x\n", 3, "not a key of an AgentConfiguration; is stateDir meant"),
        (AGENT + "colour: x\n", 3, "known are annotations, coexistence"),
        (AGENT + "stateDir: 5\n", 3, "5 is not a path"),
        (AGENT + f"statusSocket: /{'s' * 107}\n", 3, "longer than the 107 bytes"),
        (AGENT + "metricsAddress: 9402\n", 3, "9402 is not an address"),
        (AGENT + "metricsAddress: localhost:70000\n", 3, "is not an address"),
        (AGENT + "departures: {readmit: false}\n", 3, "'readmit' is not a departure: known are "),
        (AGENT + "departures: {init_apart: 1}\n", 3, "departures.init_apart: 1 is not true or fa"),
        (AGENT + "logLevel: loud\n", 3, "write 'debug', 'info', 'warning' or 'error'"),
        (AGENT + "driftInterval: 10\n", 3, "10 is not a duration above 0"),
        (AGENT + "driftInterval: 0s\n", 3, "'0s' is not a duration above 0"),
        (AGENT + "minDefaultCPUs: -1\n", 3, "greater than or equal to 0"),
        (AGENT + "coexistence: fence\n", 3, "write observe, force or {fence: 8-15}, say"),
        (AGENT + "coexistence: {fence: 1-2, x: 1}\n", 3, "is not possible: write observe"),
        (AGENT + "coexistence: {fence: 3-1}\n", 3, "coexistence: fence: range '3-1' in '3-1' runs"),
        (AGENT + "coexistence: {fence: ''}\n", 3, "fence: write a list of CPUs"),
        (AGENT + "unsupportedRuntimeClasses: kata\n", 3, "'kata' is not a list"),
        (KUBELET + "---\n" + KUBELET, 4, "a second KubeletConfiguration"),
        ("kind: Pod\n", 1, "write KubeletConfiguration or AgentConfiguration"),
        ("a: 1\nkind: AgentConfiguration\napiVersion: v1\n", 3, "write numalet.io/v1alpha1"),
        ("- 1\n", 1, "is not a mapping"),
        (KUBELET + "a: [\n", 4, "is not YAML"),
    ],
)
def test_what_is_wrong_is_told_with_line_key_and_what_is_possible(
    file: Path, text: str, line: int, reason: str
) -> None:
    file.write_text(text)

    with pytest.raises(InputError) as caught:
        load(file)

    assert caught.value.where == f"{file}:{line}"
    assert reason in str(caught.value)


@pytest.mark.parametrize("root", ["/", "", "/kubelet", "kubelet/", "/a/b-c.slice", "..a"])
def test_a_cgroup_root_in_the_hierarchy_is_taken_as_it_is(file: Path, root: str) -> None:
    assert loaded(file, f"{KUBELET}cgroupRoot: '{root}'\n").cgroup_root == root


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(InputError, match="absent: cannot be read"):
        load(Path("absent"))


def test_keys_of_the_kubelet_that_are_not_read_are_warned_of_and_mistypings_apart(
    file: Path,
) -> None:
    config = loaded(file, KUBELET + "clusterDNS: [10.0.0.1]\nfoo: 1\ncpuManagerPolcy: none\n")

    assert config.warnings == (
        f"{file}:5: cpuManagerPolcy is not read; is cpuManagerPolicy meant?",
        f"{file}:1: keys that are not read: clusterDNS, foo",
    )
    assert config.policy.cpu_policy == "static"


def test_everything_that_holds_is_described_with_its_origin(file: Path) -> None:
    config = loaded(
        file,
        KUBELET + "kubeReserved: {cpu: 1500m, memory: 1Gi}\n"
        "reservedMemory:\n- {numaNode: 1, limits: {memory: 1Gi, hugepages-2Mi: 2Mi}}\n",
    )

    rows = {key: (value, origin) for key, value, origin in describe(config)}

    assert rows["kubeReserved"] == ("cpu=1500m, memory=1Gi", f"{file}:3")
    assert rows["reservedMemory"] == ("node 1: memory=1Gi, hugepages-2Mi=2Mi", f"{file}:4")
    assert rows["driftInterval"] == ("10s", "default")
    assert rows["observe"] == ("false", "default")
    assert rows["departures"][0].startswith("pod_quota=true, ")
    # evictionHard is shown with the kubelet's defaults merged in already
    assert rows.keys() == config.origins.keys() - {"mergeDefaultEvictionSettings"}


def test_the_example_is_a_valid_configuration_without_warnings() -> None:
    config = load(EXAMPLE)

    assert config.warnings == ()
    assert config.policy.topology_policy == "single-numa-node"


def test_on_a_cluster_the_operator_chooses_pods_and_opens_namespaces(file: Path) -> None:
    config = loaded(
        file,
        AGENT + "podSelector: {labels: {workload-type: ultra-low-latency}, namespaces: [a, b]}\n"
        "annotations: {unbacked: {namespaces: [trusted]}}\n",
    )
    assert config.entitlement.labels == {"workload-type": "ultra-low-latency"}
    assert config.entitlement.namespaces == {"a", "b"}
    assert config.entitlement.unbacked_namespaces == frozenset({"trusted"})
    shown = {key: value for key, value, _ in describe(config)}
    assert shown["podSelector"] == "workload-type=ultra-low-latency; namespaces a, b"
    assert shown["annotations"] == "unbacked in trusted"


def test_without_a_word_all_pods_are_chosen_and_no_namespace_is_open(file: Path) -> None:
    config = loaded(file, AGENT)
    assert (config.entitlement.labels, config.entitlement.namespaces) == ({}, frozenset())
    assert config.entitlement.unbacked_namespaces == frozenset()


def test_a_fence_is_what_to_keep_to_beside_another_cpu_manager(file: Path) -> None:
    config = loaded(file, AGENT + "coexistence: {fence: '8-11,14'}\n")
    assert (config.coexistence, config.policy.fence) == ("fence", CPUSet.parse("8-11,14"))
    shown = "fence 8-11,14 (of CPUs; memory is not divided)"
    assert ("coexistence", shown, f"{file}:3") in describe(config)
    assert loaded(file, AGENT + "coexistence: {fence: 8}\n").policy.fence == CPUSet([8])


@pytest.mark.parametrize("choice", ["observe", "force"])
def test_without_a_fence_all_cpus_may_be_given(file: Path, choice: str) -> None:
    config = loaded(file, AGENT + f"coexistence: {choice}\n")
    assert (config.coexistence, config.policy.fence) == (choice, CPUSet())
    assert ("coexistence", choice, f"{file}:3") in describe(config)


def test_classes_that_are_not_supported_are_named_by_patterns(file: Path) -> None:
    assert loaded(file, AGENT).entitlement.unsupported_classes == ("kata*", "gvisor*", "runsc*")
    config = loaded(file, AGENT + "unsupportedRuntimeClasses: [vm]\n")
    assert config.entitlement.unsupported_classes == ("vm",)
    shown = {key: value for key, value, _ in describe(config)}
    assert shown["unsupportedRuntimeClasses"] == "vm"
