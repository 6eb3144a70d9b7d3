"""What holds in slices that systemd makes holds in plain folders, too (cgroupDriver cgroupfs)."""

import pytest

from . import test_runtimes as promises
from .test_runtimes import Life, live

pytestmark = pytest.mark.vm


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Life:
    return live("cgroupfs", "6.12", tmp_path_factory.mktemp("plain"))


test_every_thread = promises.test_every_thread_may_use_what_was_decided_and_nothing_else
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
