"""A daemon between an API server and a kubelet: pods wait for their devices, and are placed beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.rig import Cli
from tests.e2e.daemon import Daemon, Home
from tests.report.rig import until
from tests.scratch import scratch_folder
from tests.sources.api_server import Json, page, stalled
from tests.sources.kubelet_server import GPU, Kubelet, devices, pod
from tests.sources.rig import Rig

FOLDER = "var/lib/kubelet/pod-resources"


def raw_pod(name: str, **more: int) -> Json:
    amounts = {"cpu": 2, "memory": "1Gi", **more}
    resources = {"requests": amounts, "limits": amounts}
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "app", "resources": resources}]},
        "status": {"phase": "Pending"},
    }


@dataclass
class Node:
    """A daemon, the API server with its pods, and the kubelet that gives the devices."""

    home: Home
    kubelet: Kubelet
    api: Rig

    @contextmanager
    def daemon(self, *pods: Json, limit: str = "1m") -> Iterator[Daemon]:
        self.api.start_server(page(*pods), stalled())
        lines = f"hostRoot: {self.home.folder}\ndevicesTimeout: {limit}\n"
        text = self.home.config.read_text()
        self.home.config.write_text(text.partition("hostRoot:")[0] + lines)
        kubeconfig = self.api.kubeconfig(self.api.server.url)
        where = ("--pods", "kubernetes", "--kubeconfig", str(kubeconfig), "--node-name", "node-a")
        with self.home.daemon(*where) as daemon:
            daemon.until_ready()
            yield daemon


@pytest.fixture
def node() -> Iterator[Node]:
    with scratch_folder() as name:
        folder = Path(name)
        (folder / FOLDER).mkdir(parents=True)
        node = Node(Home(folder), Kubelet(folder / FOLDER / "kubelet.sock"), Rig(folder))
        yield node
        node.api.close()


def cpus(daemon: Daemon, name: str) -> str:
    pool: Any = daemon.pods()[name]["cpuPool"]
    return str(pool)


def test_a_pod_waits_for_its_devices_is_placed_beside_them_and_stays(
    node: Node, numalet: Cli
) -> None:
    gpu = raw_pod("gpu", **{GPU: 1})
    with node.kubelet.serving():
        with node.daemon(raw_pod("plain"), gpu) as daemon:
            assert cpus(daemon, "plain") == "1-2"
            assert daemon.pods()["gpu"]["reason"] == "WaitingForDevices"
            table = numalet("status", "--socket", node.home.socket).out
            assert "default/gpu waiting: WaitingForDevices: the kubelet has not told yet" in table

            node.kubelet.pods = [pod("plain", app=[]), pod("gpu", app=devices(GPU, [1]))]

            until(lambda: cpus(daemon, "gpu") == "16-17")
            explained = numalet("explain", "gpu", "--socket", node.home.socket).out
            assert "; beside its devices on NUMA node 1" in explained
        node.kubelet.pods = []
        with node.daemon(raw_pod("plain"), gpu) as daemon:
            assert (cpus(daemon, "plain"), cpus(daemon, "gpu")) == ("1-2", "16-17")


def test_after_the_time_limit_a_pod_is_placed_wherever_there_is_room(node: Node) -> None:
    with node.kubelet.serving(), node.daemon(raw_pod("gpu", **{GPU: 1}), limit="500ms") as daemon:
        until(lambda: cpus(daemon, "gpu") == "1-2")
        reason = daemon.pods()["gpu"]["containers"][0]["reason"]
        assert reason.endswith("; the kubelet did not say in time where its devices are")
        assert len(daemon.logged("devices_not_known")) == 1


def test_without_a_kubelet_s_socket_nobody_waits_and_it_is_said(node: Node) -> None:
    with node.daemon(raw_pod("gpu", **{GPU: 1})) as daemon:
        until(lambda: cpus(daemon, "gpu") == "1-2")
        (line,) = daemon.logged("devices_not_told")
        assert "there is no such socket; mount the folder" in line["what"]


def test_without_the_socket_s_folder_no_kubelet_is_asked(node: Node) -> None:
    (node.home.folder / FOLDER).rmdir()
    with node.daemon(raw_pod("gpu", **{GPU: 1})) as daemon:
        assert cpus(daemon, "gpu") == "1-2"
        assert len(daemon.logged("devices_not_asked_for")) == 1
