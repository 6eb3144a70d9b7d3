"""The commands in README.md that remove what numalet has written, by the real kubectl."""

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from agent.report.noderesourcetopology import API_VERSION as TOPOLOGY
from agent.report.noderesourcetopology import MANAGER
from agent.report.noderesourcetopology import PATH as TOPOLOGIES
from agent.report.placement import PLACEMENT

from .tools import DEPLOY, Object, program

PODS = {
    "/api/v1/namespaces/a/pods/placed": {PLACEMENT: "{}", "team": "db"},
    "/api/v1/namespaces/b/pods/other": {"team": "web"},
}
WRITERS = {"ours": [MANAGER], "of-another": ["nfd-topology"], "of-both": [MANAGER, "nfd-topology"]}
VERBS = ["delete", "get", "list", "patch"]


def commands() -> str:
    readme = (DEPLOY / "README.md").read_text()
    blocks = re.findall(r"^```console\n(.*?)^```$", readme, re.DOTALL | re.MULTILINE)
    (block,) = (block for block in blocks if PLACEMENT in block)
    return re.sub(r"^\$ ", "", block, flags=re.MULTILINE)


def kind(version: str, name: str, plural: str, *, namespaced: bool) -> Object:
    resource = {"name": plural, "singularName": "", "kind": name, "verbs": VERBS}
    resources = [resource | {"namespaced": namespaced}]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


class Cluster(ThreadingHTTPServer):
    """An API server with pods and topology objects; it does what it is asked to, and no more."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Requests)
        version = {"groupVersion": TOPOLOGY, "version": TOPOLOGY.rpartition("/")[2]}
        group = {
            "name": TOPOLOGY.partition("/")[0],
            "versions": [version],
            "preferredVersion": version,
        }
        self.fixed: dict[str, Object] = {
            "/api": {"kind": "APIVersions", "versions": ["v1"]},
            "/apis": {"kind": "APIGroupList", "groups": [group]},
            "/api/v1": kind("v1", "Pod", "pods", namespaced=True),
            f"/apis/{TOPOLOGY}": kind(
                TOPOLOGY, "NodeResourceTopology", "noderesourcetopologies", namespaced=False
            ),
        }
        self.objects: dict[str, Object] = {}
        for path, annotations in PODS.items():
            namespace, name = path.split("/")[4::2]
            metadata: Object = {"name": name, "namespace": namespace, "annotations": annotations}
            self.objects[path] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        for name, writers in WRITERS.items():
            fields = [{"manager": m, "fieldsV1": {"f:zones": {}}} for m in writers]
            metadata = {"name": name, "managedFields": fields}
            item = {"apiVersion": TOPOLOGY, "kind": "NodeResourceTopology", "metadata": metadata}
            self.objects[f"{TOPOLOGIES}/{name}"] = item

    def answer(self, method: str, path: str, body: Object) -> Object | None:
        found = self.fixed.get(path) or self.objects.get(path)
        if method == "DELETE":
            return self.objects.pop(path)
        if method == "PATCH":
            given = body.get("metadata", {}).get("annotations", {})
            held = self.objects[path]["metadata"]["annotations"] | given
            self.objects[path]["metadata"]["annotations"] = {k: v for k, v in held.items() if v}
        name = {"/api/v1/pods": "Pod", TOPOLOGIES: "NodeResourceTopology"}.get(path)
        if name is None:
            return found
        items = [item for item in self.objects.values() if item["kind"] == name]
        return {"apiVersion": items[0]["apiVersion"], "kind": f"{name}List", "items": items}


class Requests(BaseHTTPRequestHandler):
    def answer(self) -> None:
        assert isinstance(self.server, Cluster)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or "{}")
        said = self.server.answer(self.command, urlsplit(self.path).path, body)
        missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound"}
        self.send_response(HTTPStatus.OK if said else HTTPStatus.NOT_FOUND)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(said or missing | {"code": 404}).encode())

    do_GET = do_PATCH = do_DELETE = answer  # noqa: N815 - the base's names

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Be quiet."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    server = Cluster()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_annotations_go_and_topology_objects_that_nobody_else_has_written(
    cluster: Cluster, tmp_path: Path
) -> None:
    config = {
        "kind": "Config",
        "current-context": "here",
        "clusters": [
            {"name": "here", "cluster": {"server": f"http://127.0.0.1:{cluster.server_port}"}}
        ],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": ""}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    environment = {
        "HOME": str(tmp_path),
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "PATH": f"{Path(program('kubectl')).parent}:{os.environ.get('PATH', os.defpath)}",
    }

    done = subprocess.run(
        ["sh", "-e", "-c", commands()], env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    annotations = {p: o["metadata"].get("annotations") for p, o in cluster.objects.items()}
    assert annotations == {
        "/api/v1/namespaces/a/pods/placed": {"team": "db"},
        "/api/v1/namespaces/b/pods/other": {"team": "web"},
        f"{TOPOLOGIES}/of-another": None,
        f"{TOPOLOGIES}/of-both": None,
    }
