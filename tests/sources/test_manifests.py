"""Manifest files become pods; what cannot be used is told by file and line."""

import io
from pathlib import Path

import pytest

from agent.core.pods import Kind, Pod, Resources
from agent.ports import InputRejected
from agent.sources.manifests import manifest_files, parse_manifest, read_manifests
from agent.sources.pod_model import stable_uid

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "samples"
EXAMPLES = Path(__file__).resolve().parents[2] / "deploy" / "examples"
POD = """\
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers:
  - name: main
    resources:
      limits: {cpu: 2, memory: 1Gi}
"""


def pod_text(name: str = "db") -> str:
    return POD.replace("NAME", name)


def pods_of(text: str) -> list[Pod]:
    manifest = parse_manifest(text, name="f.yaml")
    assert manifest.problems == ()
    return [pod for _, pod in manifest.pods]


def problems_of(text: str) -> dict[str, str]:
    return dict(parse_manifest(text, name="f.yaml").problems)


def test_the_sample_pods_are_read_as_an_api_server_would_make_them() -> None:
    names = ["latency-critical-db", "latency-critical-db-per-container", "budget-annotation"]

    pods, rejected = read_manifests([SAMPLES / f"{name}.yaml" for name in names])

    assert rejected == []
    by_budget, by_container, annotated = pods
    total = {"cpu": 6000, "memory": 9 << 30}
    assert by_budget.full_name == "default/latency-critical-db"
    assert by_budget.uid == stable_uid("default", "latency-critical-db")
    assert by_budget.budget == annotated.budget == Resources(requests=total, limits=total)
    assert by_container.budget is None
    assert [c.name for c in by_container.app_containers] == [
        "database",
        "envoy-proxy",
        "log-collector",
    ]


def test_the_examples_are_all_good() -> None:
    pods, rejected = read_manifests([EXAMPLES / "pods", EXAMPLES / "more-pods"])

    assert rejected == []
    assert {p.name for p in pods} == {"latency-critical-db", "latency-critical-db-per-container"}


def test_claims_are_refused_with_what_to_write_instead() -> None:
    forms = [SAMPLES / f"vllm-claims-{form}.yaml" for form in ("annotation", "manifest")]

    pods, rejected = read_manifests(forms)

    assert pods == []
    assert [r.where for r in rejected] == [f"{forms[0]}:10", f"{forms[1]}:13"]
    assert all("write the pod's total as a budget" in r.reason for r in rejected)


def test_requests_default_to_limits() -> None:
    [pod] = pods_of(pod_text())

    [container] = pod.app_containers
    assert container.resources.requests == {"cpu": 2000, "memory": 1 << 30}


def test_a_file_has_several_documents_and_lists() -> None:
    item = pod_text("in-list").replace("\n", "\n    ").rstrip()

    pods = pods_of(
        pod_text("a")
        + "---\n"
        + pod_text("b")
        + f"---\napiVersion: v1\nkind: List\nitems:\n  - {item}"
    )

    assert [pod.name for pod in pods] == ["a", "b", "in-list"]


@pytest.mark.parametrize(
    ("kind", "version"),
    [
        ("Deployment", "apps/v1"),
        ("StatefulSet", "apps/v1"),
        ("DaemonSet", "apps/v1"),
        ("ReplicaSet", "apps/v1"),
        ("Job", "batch/v1"),
    ],
)
def test_a_workload_is_one_pod_of_its_name(kind: str, version: str) -> None:
    [pod] = pods_of(
        f"apiVersion: {version}\nkind: {kind}\n"
        "metadata: {name: web, namespace: prod, labels: {of: workload}, uid: workload}\n"
        "spec:\n  replicas: 3\n  template:\n"
        "    metadata: {name: ignored, labels: {of: template}, annotations: {a: b}}\n"
        "    spec:\n"
        "      initContainers:\n      - {name: proxy, restartPolicy: Always}\n"
        "      containers:\n      - {name: main}\n"
    )

    assert pod.full_name == "prod/web"
    assert pod.uid == stable_uid("prod", "web")
    assert (pod.labels, pod.annotations) == ({"of": "template"}, {"a": "b"})
    assert [c.kind for c in pod.containers] == [Kind.SIDECAR, Kind.APP]


def test_a_cron_job_has_its_template_one_level_deeper() -> None:
    text = (
        "apiVersion: batch/v1\nkind: CronJob\nmetadata: {name: nightly}\n"
        "spec:\n  jobTemplate:\n    spec:\n      template:\n        spec:\n"
        "          containers:\n          - name: NAME\n"
    )

    assert [pod.name for pod in pods_of(text.replace("NAME", "main"))] == ["nightly"]
    [(where, reason)] = problems_of(text.replace("NAME", "Main")).items()
    assert where == "f.yaml:10"
    assert reason.startswith("spec.jobTemplate.spec.template.spec.containers[0].name: 'Main' is")


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        (
            "apiVersion: v1\nkind: Service\n",
            "f.yaml:2",
            "kind: 'Service' describes no pod: write P",
        ),
        ("a: 1\n", "f.yaml:1", "kind: None describes no pod"),
        ("- 1\n", "f.yaml:1", "is not a Kubernetes object"),
        ("kind: Pod\n", "f.yaml:1", "apiVersion: None is not possible for a Pod: write v1"),
        ("apiVersion: apps/v1\nkind: Job\n", "f.yaml:1", "write batch/v1"),
        ("apiVersion: batch/v1\nkind: Job\nspec: {}\n", "f.yaml:3", "spec.template: is missing"),
        (
            "apiVersion: batch/v1\nkind: Job\nspec:\n  template: {spec: {}}\n",
            "f.yaml:1",
            "metadata.name: is missing",
        ),
        (pod_text("Db"), "f.yaml:3", "metadata.name: 'Db' is not a name"),
        (pod_text().replace("1Gi", "1 Gi"), "f.yaml:8", "resources.limits.memory: '1 Gi' is not"),
        (pod_text().replace("2", "1_000"), "f.yaml:8", "'1_000' is not a quantity"),
        (pod_text().replace("cpu", "cpus"), "f.yaml:8", "'cpus' is not a resource"),
    ],
)
def test_what_is_wrong_is_told_by_line_and_field(text: str, where: str, reason: str) -> None:
    [(place, problem)] = problems_of(text).items()

    assert place == where
    assert reason in problem


def test_everything_that_is_wrong_with_a_pod_is_told_at_once() -> None:
    text = pod_text().replace("main", "Main").replace("2", "2, ram: 1")

    assert list(problems_of(text)) == ["f.yaml:8", "f.yaml:6"]


def test_a_good_pod_does_not_suffer_from_a_bad_one_beside_it() -> None:
    manifest = parse_manifest(pod_text("good") + "---\nkind: 1\n---\n" + pod_text("b"), name="f")

    assert [(where, pod.name) for where, pod in manifest.pods] == [("f:1", "good"), ("f:12", "b")]
    assert [where for where, _ in manifest.problems] == ["f:10"]


def test_of_two_pods_with_one_name_the_first_file_in_order_counts(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(pod_text("db") + "---\n" + pod_text("other"))
    (tmp_path / "a.yaml").write_text(pod_text("db").replace("cpu: 2", "cpu: 3"))

    pods, rejected = read_manifests([tmp_path])

    assert [(pod.name, pod.app_containers[0].resources.limits["cpu"]) for pod in pods] == [
        ("db", 3000),
        ("other", 2000),
    ]
    assert rejected == [
        InputRejected(
            f"{tmp_path}/b.yaml:1",
            f"pod default/db stands in {tmp_path}/a.yaml:1 already, and that one stays:"
            " rename or remove one of the two",
        )
    ]


def test_of_two_pods_with_one_uid_the_first_counts() -> None:
    first, second = (pod_text(n).replace(f"name: {n}", f"name: {n}, uid: u") for n in "ab")

    pods, rejected = read_manifests_of(first + "---\n" + second)

    assert [pod.name for pod in pods] == ["a"]
    assert rejected == [
        InputRejected(
            "stdin:10",
            "the uid 'u' of pod default/b is that of pod default/a in stdin:1, and that one stays:"
            " give this one a metadata.uid of its own, or none, and it gets one",
        )
    ]


def read_manifests_of(text: str) -> tuple[list[Pod], list[InputRejected]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return read_manifests(["-"])


def test_standard_input_is_yaml_or_json() -> None:
    in_json = (
        '{\n\t"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "j"},\n'
        '\t"spec": {"containers": [\n\t\t{"name": "X"}\n\t]}\n}'
    )

    assert [pod.name for pod in read_manifests_of(pod_text("y"))[0]] == ["y"]
    assert [r.where for r in read_manifests_of(in_json)[1]] == ["stdin:4"]
    assert [pod.name for pod in read_manifests_of(in_json.replace("X", "x"))[0]] == ["j"]
    assert [r.where for r in read_manifests_of("a: [\n")[1]] == ["stdin:2"]


def test_a_file_without_bytes_is_told_and_one_without_objects_is_not(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").touch()
    (tmp_path / "b.yaml").write_text("# nothing any more\n")

    pods, rejected = read_manifests([tmp_path])

    assert pods == []
    assert [(r.where, r.reason) for r in rejected] == [
        (f"{tmp_path}/a.yaml", "is empty: remove the file to remove its pods")
    ]


def test_only_plain_visible_manifest_files_of_a_folder_are_read(tmp_path: Path) -> None:
    for name in ("b.yml", "a.yaml", "c.json", ".a.yaml.swp", ".hidden.yaml", "notes.txt"):
        (tmp_path / name).touch()
    (tmp_path / "folder.yaml").mkdir()

    assert [path.name for path in manifest_files(tmp_path)] == ["a.yaml", "b.yml", "c.json"]


def test_a_path_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    pods, rejected = read_manifests([tmp_path / "absent.yaml"])

    assert pods == []
    assert rejected == [
        InputRejected(f"{tmp_path}/absent.yaml", "cannot be read: No such file or directory")
    ]
