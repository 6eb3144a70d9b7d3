"""An annotation may carry a pod's budget; then it says what spec.resources would say."""

import pytest

from agent.core.claims import (
    BUDGET_ANNOTATION,
    CLAIMS_ANNOTATION,
    ClaimsError,
    aggregate,
    has_annotated_budget,
    unbacked,
    with_annotated_budget,
)
from agent.core.pods import Container, Kind, Pod, PodUID, QosClass, Resources, qos_class

GI = 1 << 30


def pod(annotation: str | None = None, *requests: dict[str, int]) -> Pod:
    return Pod(
        uid=PodUID("u"),
        annotations={} if annotation is None else {BUDGET_ANNOTATION: annotation},
        app_containers=tuple(
            Container(name=f"c{i}", resources=Resources(requests=r)) for i, r in enumerate(requests)
        ),
    )


def test_an_annotation_is_a_budget_with_requests_equal_to_limits() -> None:
    decided = with_annotated_budget(pod('{"cpu": "6", "memory": "9Gi", "hugepages-2Mi": 0}'))

    amounts = {"cpu": 6000, "memory": 9 * GI, "hugepages-2Mi": 0}
    assert decided.budget == Resources(requests=amounts, limits=amounts)
    assert has_annotated_budget(decided)
    assert qos_class(decided) is QosClass.GUARANTEED


def test_kubernetes_does_not_count_an_annotated_budget() -> None:
    decided = with_annotated_budget(pod('{"cpu": "6", "memory": "9Gi"}', {"cpu": 500}))

    assert qos_class(decided, pod_level_resources=False) is QosClass.BURSTABLE


def test_numbers_are_their_texts() -> None:
    decided = with_annotated_budget(pod('{"cpu": 1.5, "memory": 1073741824}'))

    assert decided.budget is not None
    assert decided.budget.limits == {"cpu": 1500, "memory": GI}


def test_a_pod_without_the_annotation_stays_as_it_is() -> None:
    plain = pod()

    assert with_annotated_budget(plain) is plain
    assert not has_annotated_budget(plain)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cpu: 6", "is not JSON: write a JSON object"),
        ("[" * 100_000, "is not JSON"),
        ('[["cpu", "6"]]', "names no resource"),
        ("{}", "names no resource"),
        ("null", "names no resource"),
        ('{"cpu": "6", "cpu": "7"}', "'cpu' is repeated"),
        ('{"cpus": "6"}', "'cpus' cannot be budgeted"),
        ('{"cpu": null}', "cpu is not a quantity"),
        ('{"cpu": true}', "cpu is not a quantity"),
        ('{"cpu": NaN}', "cpu is not a quantity"),
        ('{"cpu": {"count": 6}}', "cpu is not a quantity"),
        ('{"memory": "9 Gi"}', "memory: '9 Gi' is not a quantity"),
        ('{"memory": -1}', "memory: '-1' is negative"),
    ],
)
def test_what_is_no_budget_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ClaimsError, match=reason) as caught:
        with_annotated_budget(pod(text))

    assert caught.value.annotation == BUDGET_ANNOTATION


def test_two_budgets_are_refused() -> None:
    both = Pod(
        uid=PodUID("u"),
        budget=Resources(limits={"cpu": 1000}),
        annotations={BUDGET_ANNOTATION: '{"cpu": "1"}'},
    )

    with pytest.raises(ClaimsError, match=r"spec\.resources says a budget too"):
        with_annotated_budget(both)


def test_named_claims_are_refused_with_what_to_write_instead() -> None:
    claims = Pod(uid=PodUID("u"), annotations={CLAIMS_ANNOTATION: "claims: []"})

    with pytest.raises(ClaimsError, match="write the pod's total as a budget") as caught:
        with_annotated_budget(claims)

    assert caught.value.annotation == CLAIMS_ANNOTATION


def test_what_the_containers_do_not_request_is_unbacked() -> None:
    text = '{"cpu": "6", "memory": "9Gi"}'

    short = with_annotated_budget(pod(text, {"cpu": 4000}, {"cpu": 1500, "memory": 9 * GI}))
    enough = with_annotated_budget(pod(text, {"cpu": 4000}, {"cpu": 2000, "memory": 10 * GI}))

    assert unbacked(short) == {"cpu": 500}
    assert unbacked(enough) == {}
    assert unbacked(pod()) == {}


def test_the_aggregate_is_the_larger_of_the_running_pod_and_of_its_worst_init_phase() -> None:
    def container(kind: Kind, cpu: int) -> Container:
        return Container(name=f"{kind}{cpu}", kind=kind, resources=Resources(limits={"cpu": cpu}))

    def total(app: int) -> int:
        phased = Pod(
            uid=PodUID("u"),
            init_containers=(
                container(Kind.INIT, 3),  # alone
                container(Kind.SIDECAR, 1),
                container(Kind.INIT, 8),  # beside the first sidecar: 9
                container(Kind.SIDECAR, 2),
            ),
            app_containers=(container(Kind.APP, app),),
        )
        return aggregate(phased, lambda resources: resources.limits)["cpu"]

    assert total(app=5) == 9
    assert total(app=7) == 10
