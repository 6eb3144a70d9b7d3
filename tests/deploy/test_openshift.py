"""What is for OpenShift, as far as it can be judged without one."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from .tools import Object, by_name, composed, containers, documents, pod_spec, templated

COMPONENTS = ("cri-o", "openshift", "release")
CHART = "runtime=cri-o,openshift=true,release=true"
SPC = {"type": "spc_t", "level": "s0"}
NAMESPACE_LEVEL = "s0:c27,c4"
"""Such a one OpenShift gives to each namespace."""


@pytest.fixture(params=["components", "chart"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> list[Object]:
    is_chart = request.param == "chart"
    return documents(templated("--set", CHART) if is_chart else composed(tmp_path, *COMPONENTS))


def constraints_of(objects: list[Object]) -> Object:
    return by_name(objects)["SecurityContextConstraints", "numalet"]


def refusals(strategy: Object, contexts: Sequence[Object]) -> list[str]:
    """Return what the admission has against SELinux options (``mustRunAs``, apiserver-library-go).

    Whoever asks for none gets those of the constraints; what is asked for must be those.  A level that
    the constraints do not name is the namespace's (``requiresPreAllocatedSELinuxLevel``).
    """
    if strategy["type"] == "RunAsAny":
        return []
    wanted = {"level": NAMESPACE_LEVEL, **strategy.get("seLinuxOptions", {})}
    asked = [context["seLinuxOptions"] for context in contexts if "seLinuxOptions" in context]
    return [
        f"{key}: {options.get(key, '')!r} is not {wanted.get(key, '')!r}"
        for options in asked
        for key in ("level", "role", "type", "user")
        if options.get(key, "") != wanted.get(key, "")
    ]


def test_pod_and_constraints_do_not_contradict_each_other(objects: list[Object]) -> None:
    contexts = [pod_spec(objects), *containers(objects)]
    strategy = constraints_of(objects)["seLinuxContext"]

    assert not refusals(strategy, [item["securityContext"] for item in contexts])
    assert strategy == {"type": "MustRunAs", "seLinuxOptions": SPC}  # this context and no other


def test_a_level_that_the_constraints_leave_open_is_one_that_a_pod_cannot_know() -> None:
    strategy = {"type": "MustRunAs", "seLinuxOptions": {"type": "spc_t"}}

    assert refusals(strategy, [{"seLinuxOptions": {"type": "spc_t"}}]) == [
        f"level: '' is not '{NAMESPACE_LEVEL}'"
    ]


def test_every_container_may_write_cgroups(objects: list[Object]) -> None:
    pod = pod_spec(objects)["securityContext"].get("seLinuxOptions")
    names = {
        c["name"]: c["securityContext"].get("seLinuxOptions", pod) for c in containers(objects)
    }

    assert names == {"release": SPC, "numalet": SPC}


def test_the_pod_asks_for_nothing_else_that_the_constraints_refuse(objects: list[Object]) -> None:
    constraints, spec = constraints_of(objects), pod_spec(objects)
    kinds = {key for volume in spec["volumes"] for key in volume if key != "name"}
    contexts = [container["securityContext"] for container in containers(objects)]

    assert {*kinds, "projected"} == set(constraints["volumes"])  # projected: the token
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert constraints["seccompProfiles"] == ["runtime/default"]
    assert constraints["requiredDropCapabilities"] == ["ALL"]
    assert all(context["capabilities"] == {"drop": ["ALL"]} for context in contexts)
    assert all(context["readOnlyRootFilesystem"] for context in contexts)
    assert not any(c["privileged"] or c["allowPrivilegeEscalation"] for c in contexts)


def test_only_its_own_service_account_may_use_the_constraints(objects: list[Object]) -> None:
    named, constraints = by_name(objects), constraints_of(objects)
    (rule,) = named["Role", "numalet-scc"]["rules"]
    (subject,) = named["RoleBinding", "numalet-scc"]["subjects"]

    assert (rule["resourceNames"], rule["verbs"]) == (["numalet"], ["use"])
    assert subject == {"kind": "ServiceAccount", "name": "numalet", "namespace": "numalet"}
    assert (constraints["users"], constraints["groups"]) == ([], [])
    assert "namespace" not in constraints["metadata"]


def test_the_bundles_are_those_of_cri_o(objects: list[Object]) -> None:
    (place,) = (
        v["hostPath"]["path"] for v in pod_spec(objects)["volumes"] if v["name"] == "bundles"
    )
    (agent,) = pod_spec(objects)["containers"]
    (mount,) = (m["mountPath"] for m in agent["volumeMounts"] if m["name"] == "bundles")

    assert place == "/run/containers/storage/overlay-containers"
    assert mount == f"/host{place}"
