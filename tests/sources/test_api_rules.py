"""A pod that no API server has seen gets the defaults and the refusals that one would give it."""

from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.claims import BUDGET_ANNOTATION
from agent.core.pods import Container, Kind, Pod, PodUID, QosClass, Resources, qos_class
from agent.documents import FieldError
from agent.ports import Event, InputRejected
from agent.sources.api_rules import apply_defaults, parse_served, unknown_resources, validate
from agent.sources.known_pods import KnownPods

GI = 1 << 30
MI = 1 << 20
HUGE = "hugepages-2Mi"


def container(
    name: str = "a",
    requests: Mapping[str, int] | None = None,
    limits: Mapping[str, int] | None = None,
    kind: Kind = Kind.APP,
) -> Container:
    return Container(
        name=name, kind=kind, resources=Resources(requests=requests or {}, limits=limits or {})
    )


def pod(*containers: Container, budget: Resources | None = None, name: str = "db") -> Pod:
    return Pod(
        uid=PodUID("u"),
        name=name,
        budget=budget,
        init_containers=tuple(c for c in containers if c.kind in (Kind.INIT, Kind.SIDECAR)),
        app_containers=tuple(c for c in containers if c.kind is Kind.APP),
        ephemeral_containers=tuple(c for c in containers if c.kind is Kind.EPHEMERAL),
    )


def budget_of(defaulted: Pod) -> Resources:
    assert defaulted.budget is not None
    return defaulted.budget


def problems(*containers: Container, budget: Resources | None = None) -> list[str]:
    return [str(p) for p in validate(apply_defaults(pod(*containers, budget=budget)))]


# Defaults: what a v1.36.2 API server answered to these pods.


def test_recorded_limits_of_the_pod_alone_become_its_requests() -> None:
    limits = {"cpu": 2000, "memory": 128 * MI}

    defaulted = apply_defaults(pod(container("a"), container("b"), budget=Resources(limits=limits)))

    assert budget_of(defaulted) == Resources(requests=limits, limits=limits)
    assert qos_class(defaulted) is QosClass.GUARANTEED


def test_recorded_a_limit_of_one_container_becomes_the_request_of_the_pod() -> None:
    limits = {"cpu": 2000, "memory": 128 * MI}

    defaulted = apply_defaults(
        pod(container("a"), container("b", limits={"cpu": 1000}), budget=Resources(limits=limits))
    )

    assert defaulted.app_containers[1].resources.requests == {"cpu": 1000}
    assert budget_of(defaulted).requests == {"cpu": 1000, "memory": 128 * MI}
    assert qos_class(defaulted) is QosClass.BURSTABLE


def test_recorded_a_complete_pod_is_left_as_it_is() -> None:
    both = {"cpu": 6000, "memory": 9 * GI}
    whole = pod(
        container("database", {"cpu": 4000, "memory": 8 * GI}, {"cpu": 4000, "memory": 8 * GI}),
        container("envoy", {"cpu": 100, "memory": 512 * MI}, {"cpu": 1500, "memory": 512 * MI}),
        budget=Resources(requests=both, limits=both),
    )

    assert apply_defaults(whole) == whole
    assert validate(whole) == []


# Defaults: the rest of defaultHugePagePodLimits and defaultPodRequests.


def test_a_pod_that_only_requests_gets_nothing() -> None:
    budget = Resources(requests={"cpu": 2000})

    defaulted = apply_defaults(pod(container(requests={"memory": GI}), budget=budget))

    assert defaulted.budget == budget


def test_a_request_that_only_containers_make_becomes_the_pods_too() -> None:
    defaulted = apply_defaults(
        pod(
            container("i", {"memory": 3 * GI}, kind=Kind.INIT),
            container("a", {"memory": GI}),
            container("b", {"memory": GI}),
            budget=Resources(limits={"cpu": 2000}),
        )
    )

    assert budget_of(defaulted).requests == {"cpu": 2000, "memory": 3 * GI}


@pytest.mark.parametrize(
    "budget", [Resources(limits={"cpu": 1000}), Resources(requests={"cpu": 1000})]
)
def test_huge_pages_of_containers_bound_and_fill_the_budget(budget: Resources) -> None:
    containers = (container("a", limits={HUGE: 4 * MI}), container("b", limits={HUGE: 2 * MI}))

    defaulted = budget_of(apply_defaults(pod(*containers, budget=budget)))

    assert defaulted.limits[HUGE] == defaulted.requests[HUGE] == 6 * MI


@pytest.mark.parametrize("budget", [None, Resources()])
def test_a_pod_without_a_budget_gets_none(budget: Resources | None) -> None:
    defaulted = apply_defaults(pod(container(limits={"cpu": 1000, HUGE: 2 * MI}), budget=budget))

    assert defaulted.budget == budget


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", HUGE]), st.integers(0, 8).map(lambda n: n * 2 * MI)
)
RESOURCES = st.builds(Resources, requests=AMOUNTS, limits=AMOUNTS)
PODS = st.builds(
    lambda containers, budget: pod(
        *(
            Container(name=f"c{i}", kind=kind, resources=resources)
            for i, (kind, resources) in enumerate(containers)
        ),
        budget=budget,
    ),
    st.lists(
        st.tuples(st.sampled_from([Kind.INIT, Kind.SIDECAR, Kind.APP]), RESOURCES), max_size=4
    ),
    st.none() | RESOURCES,
)


@given(any_pod=PODS)
def test_defaults_are_idempotent_and_take_nothing_away(any_pod: Pod) -> None:
    once = apply_defaults(any_pod)

    assert apply_defaults(once) == once
    for before, after in zip(_resources(any_pod), _resources(once), strict=True):
        assert before.requests.items() <= after.requests.items()
        assert before.limits.items() <= after.limits.items()


@given(
    kinds=st.lists(st.sampled_from([Kind.INIT, Kind.SIDECAR, Kind.APP]), max_size=5),
    cpus=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    total=st.integers(0, 8),
)
def test_a_budget_is_valid_if_and_only_if_every_phase_of_the_pod_fits(
    kinds: list[Kind], cpus: list[int], total: int
) -> None:
    kinds = sorted([*kinds, Kind.APP], key=lambda kind: kind is Kind.APP)
    containers = [
        container(f"c{i}", limits={"cpu": cpu}, kind=kind)
        for i, (kind, cpu) in enumerate(zip(kinds, cpus, strict=False))
    ]
    needs = [
        sum(
            cpu
            for other, (kind, cpu) in enumerate(zip(kinds, cpus, strict=False))
            if other == phase
            or (kind is Kind.SIDECAR and other < phase)
            or (kinds[phase] is kind is Kind.APP)
        )
        for phase in range(len(kinds))
    ]

    found = problems(*containers, budget=Resources(requests={"cpu": total}))

    assert (found == []) is all(need <= total for need in needs)


def _resources(of: Pod) -> Iterator[Resources]:
    yield from (c.resources for c in of.containers)
    if of.budget is not None:
        yield of.budget


# Refusals.


def test_recorded_requests_of_containers_above_the_pods_are_refused() -> None:
    big = {"cpu": 4000, "memory": 64 * MI}
    both = {"cpu": 6000, "memory": GI}

    assert problems(
        container("a", big), container("b", big), budget=Resources(requests=both, limits=both)
    ) == [
        "spec.resources.requests.cpu: must be at least the containers' requests together, 8, is 6"
    ]


def test_recorded_a_container_limit_above_the_pods_is_refused() -> None:
    both = {"cpu": 6000, "memory": GI}

    assert problems(
        container("a", {"cpu": 1000, "memory": 64 * MI}, {"cpu": 8000, "memory": 64 * MI}),
        budget=Resources(requests=both, limits=both),
    ) == [
        "spec.containers[0].resources.limits.cpu: must be at most the pod's limit of 6, is 8",
    ]


def test_limits_of_containers_may_exceed_the_pods_together_and_while_they_initialise() -> None:
    both = {"cpu": 2000, "memory": GI}

    assert not problems(
        container("i", {"cpu": 1000}, {"cpu": 4000}, kind=Kind.INIT),
        container("a", {"cpu": 1000}, {"cpu": 2000}),
        container("b", {"cpu": 1000}, {"cpu": 2000}),
        budget=Resources(requests=both, limits=both),
    )


def test_an_annotated_budget_is_checked_where_it_stands() -> None:
    amounts = {"cpu": 1000, "memory": GI}
    annotated = Pod(
        uid=PodUID("u"),
        name="db",
        budget=Resources(requests=amounts, limits=amounts),
        app_containers=(container("a", {"cpu": 2000}),),
        annotations={BUDGET_ANNOTATION: "as parsed"},
    )

    assert [p.path[:3] for p in validate(annotated)] == [
        ("metadata", "annotations", BUDGET_ANNOTATION)
    ]


@pytest.mark.parametrize(
    ("resources", "reason"),
    [
        (Resources(requests={"cpu": 1500}, limits={"cpu": 1000}), "the limit of 1, is 1500m"),
        (Resources(requests={HUGE: 2 * MI, "cpu": 1}), "cannot be overcommitted"),
        (
            Resources(requests={HUGE: 2 * MI, "cpu": 1}, limits={HUGE: 4 * MI}),
            "cannot be overcommitted",
        ),
        (Resources(limits={HUGE: 3 * MI, "cpu": 1}), "3145728 bytes is not a whole number of page"),
        (Resources(limits={"hugepages-x": 2 * MI, "cpu": 1}), "not a whole number of pages"),
        (Resources(limits={"hugepages-0": 2 * MI, "cpu": 1}), "not a whole number of pages"),
        (Resources(limits={"hugepages-100m": 2 * MI, "cpu": 1}), "not a whole number of pages"),
        (Resources(limits={HUGE: 2 * MI}), "huge pages need cpu or memory"),
    ],
)
def test_resources_of_a_container_or_pod_that_contradict_themselves_are_refused(
    resources: Resources, reason: str
) -> None:
    of_a_container = problems(Container(name="a", resources=resources))
    of_a_pod = problems(container("a"), budget=resources)

    assert any(reason in p and p.startswith("spec.containers[0].resources") for p in of_a_container)
    assert any(reason in p and p.startswith("spec.resources") for p in of_a_pod)


def test_huge_pages_of_containers_fit_into_the_budgets() -> None:
    budget = Resources(limits={"cpu": 1000, HUGE: 2 * MI})
    at, in_a = "spec.resources", "spec.containers[0].resources"

    assert problems(container("a", limits={HUGE: 4 * MI, "cpu": 1}), budget=budget) == [
        f"{at}.requests[{HUGE}]: must be at least the containers' requests together, 4Mi, is 2Mi",
        f"{at}.limits[{HUGE}]: must be at least the containers' limits together, 4Mi, is 2Mi",
        f"{in_a}.limits[{HUGE}]: must be at most the pod's limit of 2Mi, is 4Mi",
    ]


def test_a_pod_has_a_container() -> None:
    assert problems() == ["spec.containers: is missing: a pod has at least one"]


@pytest.mark.parametrize("name", ["", "..", "a/b", "A", "a_b", "-a", "a-", "a.b", "a" * 64, "a\n"])
@pytest.mark.parametrize("kind", list(Kind))
def test_a_container_name_that_could_be_no_directory_is_refused(name: str, kind: Kind) -> None:
    found = problems(container(name, kind=kind), container("ok"))

    assert len(found) == 1
    assert f"{name!r} is not a name" in found[0]


def test_names_of_containers_are_unique_in_the_whole_pod() -> None:
    assert problems(container("a", kind=Kind.INIT), container("a")) == [
        "spec.containers[0].name: 'a' is the name of another container of this pod"
    ]


@pytest.mark.parametrize(("name", "is_good"), [("a.b-1", True), ("a..b", False), ("", False)])
def test_a_pod_name_may_have_dots(name: str, is_good: bool) -> None:  # noqa: FBT001 a parameter
    assert (validate(pod(container(), name=name)) == []) is is_good


def test_resources_that_no_api_server_knows_are_found_in_the_object() -> None:
    spec = {
        "resources": {"requests": {"ephemeral-storage": "1Gi", "cpu": 1, HUGE: 0}, "limits": None},
        "initContainers": [{"name": "i", "resources": {"limits": {"ram": "1Gi"}}}],
        "containers": [
            {"name": "a"},
            {"name": "b", "resources": {"requests": {"ephemeral-storage": 1, "x.io/y": 1}}},
            {"name": "c", "resources": {"requests": {"cpus": 4}}},
        ],
    }

    assert [p.path for p in unknown_resources(spec)] == [
        ("spec", "initContainers", 0, "resources", "limits", "ram"),
        ("spec", "containers", 2, "resources", "requests", "cpus"),
        ("spec", "resources", "requests", "ephemeral-storage"),
    ]
    assert list(unknown_resources({"containers": []})) == []


def test_claims_of_the_pod_are_refused() -> None:
    spec = {"resources": {"claims": [{"name": "main", "resource": "cpu", "count": 8}]}}

    [problem] = unknown_resources(spec)

    assert problem.path == ("spec", "resources", "claims")
    assert "named claims are not supported" in problem.message


# What an API server sends is not taken on trust where it becomes a path.


def served(*names: str) -> Pod:
    raw = {"metadata": {"name": "db"}, "spec": {"containers": [{"name": n} for n in names]}}
    return parse_served(raw, where="pod default/db")


def test_a_pod_with_proper_names_is_taken_as_it_is_sent() -> None:
    assert [c.name for c in served("a", "a-1").app_containers] == ["a", "a-1"]


@pytest.mark.parametrize("name", ["", "A", "../x", "a\n", "-a", "a" * 64])
def test_a_name_that_no_api_server_takes_is_refused_as_an_input(name: str) -> None:
    told: list[Event] = []
    raw = {"metadata": {"name": "db", "namespace": "default", "uid": "u"}}
    KnownPods(told.append, parse_served).changed(raw | {"spec": {"containers": [{"name": name}]}})
    (rejected,) = told
    assert isinstance(rejected, InputRejected)
    assert rejected.where == "pod default/db"
    assert rejected.reason.startswith(f"spec.containers[0].name: {name!r} is not a name")


def test_two_containers_of_one_name_are_refused() -> None:
    with pytest.raises(FieldError, match="the name of another container"):
        served("a", "a")
