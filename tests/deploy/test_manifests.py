"""What `kubectl apply -k` applies, by the real kustomize and against Kubernetes' own schemas."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from agent import __version__
from agent.config import load
from agent.own_config import AgentConfiguration
from agent.report.http import HttpServer
from tests.report.rig import Told, empty_snapshot, get, served

from .tools import (
    COMPONENTS,
    DEPLOY,
    OVERLAYS,
    Object,
    base_files,
    by_name,
    complaints,
    composed,
    config_text,
    containers,
    daemon_set,
    documents,
    kustomized,
    pod_spec,
)

FOLDERS = [DEPLOY, DEPLOY / "base", *(DEPLOY / "overlays" / name for name in OVERLAYS)]
RECURSIVE = ("/proc", "/run/containerd/io.containerd.runtime.v2.task")
"""hostPaths below which the host mounts more."""
ONE_BY_ONE = {"maxUnavailable": 1, "maxSurge": 0}


def container(objects: list[Object]) -> dict[str, Any]:
    (only,) = pod_spec(objects)["containers"]
    assert isinstance(only, dict)
    return only


def overlay(name: str) -> list[Object]:
    return documents(kustomized(DEPLOY / "overlays" / name))


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("**/*.yaml")), ids=lambda p: p.name)
def test_every_file_is_yaml(path: Path) -> None:
    if "templates" not in path.parts:
        assert list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("**/kustomization.yaml")), ids=str)
def test_a_kustomization_names_files_that_are_there_and_forgets_none(path: Path) -> None:
    said = yaml.safe_load(path.read_text())
    generated = [f for made in said.get("configMapGenerator", ()) for f in made["files"]]
    patches = [patch["path"] for patch in said.get("patches", ()) if "path" in patch]
    named = [*said.get("resources", ()), *said.get("components", ()), *generated, *patches]
    beside = {p.name for p in path.parent.glob("*.yaml")} - {path.name}

    assert all((path.parent / name).exists() for name in named)
    assert beside <= set(named)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_what_kustomize_makes_is_valid_for_kubernetes(folder: Path, tmp_path: Path) -> None:
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(kustomized(folder))

    assert not complaints(rendered)


@pytest.mark.parametrize("name", COMPONENTS)
def test_each_component_can_be_added_to_the_base(name: str, tmp_path: Path) -> None:
    assert composed(tmp_path, name) != kustomized(DEPLOY / "base")


def test_the_agent_reads_the_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text((DEPLOY / "base/config.yaml").read_text())

    config = load(path)

    assert config.host_root == Path("/host")
    assert not config.warnings
    assert config.state_dir == Path("/host/var/lib/numalet")


def test_the_written_configuration_is_the_one_that_is_applied() -> None:
    assert config_text(overlay("observe")) == (DEPLOY / "base/config.yaml").read_text()


def test_what_needs_another_right_is_off() -> None:
    own = list(yaml.safe_load_all((DEPLOY / "base/config.yaml").read_text()))[1]
    read = AgentConfiguration.model_validate(own)

    assert (read.placement_annotation, read.node_resource_topology) == (False, False)
    assert read.on_rejection == "keep"


def test_the_probes_ask_for_paths_that_the_agent_serves_on_the_port_that_it_has() -> None:
    (agent,) = pod_spec(base_files())["containers"]
    probes = [agent["livenessProbe"]["httpGet"], agent["readinessProbe"]["httpGet"]]
    ports = {port["name"]: port["containerPort"] for port in agent["ports"]}
    own = list(yaml.safe_load_all((DEPLOY / "base/config.yaml").read_text()))[1]

    with served(Told(empty_snapshot())) as server:
        answers = {probe["path"]: get(server.port, probe["path"])[0] for probe in probes}

    assert answers == {"/healthz": 200, "/readyz": 503}  # alive, without any pods yet
    assert {ports[probe["port"]] for probe in probes} == {9402}
    assert own["metricsAddress"] == "0.0.0.0:9402"


def test_an_agent_that_waits_for_the_lock_is_alive_and_not_ready() -> None:
    server = HttpServer("127.0.0.1:0", lambda: b"", lambda: None)
    server.start()
    try:
        answers = [get(server.port, path)[0] for path in ("/healthz", "/readyz")]
    finally:
        server.close()

    assert answers == [200, 503]


def test_it_runs_as_root_with_no_capability_and_little_else() -> None:
    spec = pod_spec(base_files())
    (agent,) = spec["containers"]

    assert agent["securityContext"] == {
        "runAsUser": 0,
        "runAsGroup": 0,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert not {"hostPID", "hostNetwork", "hostIPC"} & spec.keys()


def test_the_host_s_paths_are_below_host_and_only_two_can_be_written() -> None:
    spec = pod_spec(base_files())
    (agent,) = spec["containers"]
    places = {v["name"]: v["hostPath"]["path"] for v in spec["volumes"] if "hostPath" in v}
    mounts = {m["name"]: m for m in agent["volumeMounts"] if m["name"] in places}

    assert {name: m["mountPath"] for name, m in mounts.items()} == {
        name: f"/host{path}" for name, path in places.items()
    }
    written = {places[name] for name, mount in mounts.items() if not mount.get("readOnly")}
    assert written == {"/sys/fs/cgroup", "/var/lib/numalet"}
    deep = {places[name] for name, mount in mounts.items() if mount.get("recursiveReadOnly")}
    assert deep == set(RECURSIVE)


def test_no_mount_gives_it_the_runtime_s_socket_or_other_pods_volumes() -> None:
    places = [v["hostPath"]["path"] for v in pod_spec(base_files())["volumes"] if "hostPath" in v]

    for secret in ("/run/containerd/containerd.sock", "/var/lib/kubelet/pods"):
        assert not any(Path(secret).is_relative_to(place) for place in places)


def test_a_roll_out_ends_the_old_agent_before_it_starts_the_new_one() -> None:
    strategy = daemon_set(base_files())["spec"]["updateStrategy"]

    assert strategy == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0},
    }


def test_another_configuration_is_rolled_out(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for path in (DEPLOY / "base").iterdir():
        (tmp_path / "base" / path.name).write_text(path.read_text())
    before = pod_spec(documents(kustomized(tmp_path / "base")))
    with (tmp_path / "base/config.yaml").open("a") as config:
        config.write("logLevel: debug\n")

    after = pod_spec(documents(kustomized(tmp_path / "base")))

    assert before["volumes"][0]["configMap"] != after["volumes"][0]["configMap"]


def test_the_image_is_the_one_of_this_version() -> None:
    images = {c["image"] for name in OVERLAYS for c in containers(overlay(name))}

    assert images == {f"numalet:{__version__}"}


def test_observing_adds_one_word_and_changes_nothing_else() -> None:
    base, observing = (documents(kustomized(DEPLOY / f)) for f in ("base", "overlays/observe"))

    assert container(observing)["args"].pop() == "--observe"
    assert observing == base


def test_a_canary_runs_on_chosen_nodes_and_changes_nothing_else() -> None:
    base, canary = (documents(kustomized(DEPLOY / f)) for f in ("base", "overlays/canary"))

    assert pod_spec(canary)["nodeSelector"].pop("numalet.io/canary") == "true"
    assert canary == base


def test_the_service_monitor_finds_the_agents_metrics() -> None:
    objects = by_name(overlay("service-monitor"))
    service, monitor = objects["Service", "numalet"], objects["ServiceMonitor", "numalet"]
    wanted = monitor["spec"]["selector"]["matchLabels"]
    (port,) = service["spec"]["ports"]
    template = objects["DaemonSet", "numalet"]["spec"]["template"]

    assert wanted.items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    assert [e["port"] for e in monitor["spec"]["endpoints"]] == [port["name"]]
    assert port["targetPort"] in {
        p["name"] for c in template["spec"]["containers"] for p in c["ports"]
    }


def test_releasing_gives_everything_back_before_it_only_observes() -> None:
    objects = overlay("release")
    (release,), agent = pod_spec(objects)["initContainers"], container(objects)

    assert release["args"] == ["release", "--config=/etc/numalet/config.yaml"]
    assert agent["args"][-1] == "--observe"
    assert release["securityContext"] == agent["securityContext"]
    own = {mount["name"]: mount for mount in agent["volumeMounts"]}
    assert all(mount == own[mount["name"]] for mount in release["volumeMounts"])


def test_releasing_goes_node_by_node_like_every_roll_out() -> None:
    strategies = [daemon_set(overlay(n))["spec"]["updateStrategy"] for n in ("release", "observe")]

    assert strategies == [{"type": "RollingUpdate", "rollingUpdate": ONE_BY_ONE}] * 2


@pytest.mark.parametrize("components", [["observe"], ["observe", "release"]], ids=str)
def test_the_words_of_the_command_line_are_options_that_there_are(
    components: list[str], tmp_path: Path
) -> None:
    from typer.main import get_command  # noqa: PLC0415 - half a second, for this test only

    from agent.commands import cli  # noqa: PLC0415

    command = get_command(cli)
    words = container(documents(composed(tmp_path, *components)))["args"]
    parsed = command.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined] # a group

    assert parsed.params["pods"] == "kubernetes"
    assert parsed.params["observe"] is True
    assert parsed.params["wait_for_lock"] is True
    assert parsed.params["node_name"] == "$(NODE_NAME)"


def test_who_stops_the_agent_waits_ten_minutes_for_memory_on_its_way() -> None:
    """A write of ``cpuset.mems`` cannot be interrupted, and SIGKILL waits for it too."""
    unit = (DEPLOY.parent / "systemd/numalet.service").read_text()
    assert "TimeoutStopSec=10min" in unit.splitlines()
    assert pod_spec(documents(kustomized(DEPLOY)))["terminationGracePeriodSeconds"] == 10 * 60
