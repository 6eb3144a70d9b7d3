"""The same on Linux 6.12, where the agent is killed meanwhile, and a pod is containerd's."""

import pytest

from . import test_runtimes as promises
from .test_runtimes import AGENT, Life, live

pytestmark = pytest.mark.vm


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return live("systemd", "6.12", tmp_path_factory.mktemp("long"), "more")


test_every_thread = promises.test_every_thread_may_use_what_was_decided_and_nothing_else
test_threads = promises.test_a_program_with_threads_of_its_own_was_among_them
test_exclusive_cpus = promises.test_exclusive_cpus_are_nobody_elses
test_the_files = promises.test_the_cgroup_with_the_processes_says_it_crun_s_inner_one_too
test_the_quotas = promises.test_what_is_exclusive_has_no_quota_and_who_shares_keeps_the_runtime_s
test_first_sight = promises.test_a_program_saw_its_own_cpus_when_it_began
test_a_short_life = promises.test_a_container_that_lives_for_less_than_half_a_second_is_confined_too
test_a_busy_sidecar = (
    promises.test_a_busy_sidecar_never_runs_on_the_cpus_of_its_pod_s_exclusive_container
)
test_the_metric = promises.test_the_agent_s_own_metric_tells_no_window_too_short
test_no_value_twice = promises.test_no_value_is_written_where_it_stands_already
test_a_restart = promises.test_a_restarted_container_keeps_its_cpus_under_its_new_id
test_an_ephemeral_container = promises.test_an_ephemeral_container_runs_on_the_default_cpu_set
test_a_deletion = promises.test_a_deleted_pod_s_cpus_are_everybody_s_again
test_the_end = promises.test_the_agent_ends_with_status_0


def test_an_agent_that_is_killed_at_any_instant_and_started_again_writes_nothing(
    life: Life,
) -> None:
    begin, end = life.told["killed at"], life.told["killed"]["at"]

    made = [write for write in life.writes() if write.comm == AGENT and begin < write.at_s < end]

    assert made == [], f"it lived for {life.told['lives']} s"
    assert life.containers("killed").keys() == life.containers("placed").keys()
    for name, container in life.containers("placed").items():
        after = life.containers("killed")[name]
        assert (after["leaf"], after["files"]) == (container["leaf"], container["files"]), name
    assert life.status("killed")["pods"] == life.status("placed")["pods"]


def test_debian_s_containerd_has_its_containers_confined_before_their_programs_begin(
    life: Life,
) -> None:
    decided, containers = life.decided("containerd"), life.containers("containerd")

    for name, verdict in (("worker", "exclusive"), ("helper", "pod-shared")):
        assert decided[name]["verdict"] == verdict
        assert containers[name]["born"] == [decided[name]["cpus"], decided[name]["mems"]]
        assert containers[name]["threads"] == [containers[name]["born"]]
