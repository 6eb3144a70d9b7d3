from dataclasses import replace

import pytest

from tests.bench.kubelet import Row, kubelet_times, rejections, row
from tests.bench.table import markdown
from tests.conformance.timing import Times

ROW = Row("n2x64s-dist", 1000, 100, 400)


def test_the_kubelets_times_are_read_from_the_page_beside_the_scenarios() -> None:
    found = kubelet_times()
    assert len(found) == 32
    assert found["n2x16-best-effort-empty"] == 481
    assert found["n8x32s-uncore"] == 28278


@pytest.mark.parametrize(
    ("us", "saved", "met"),
    [(100, 500, "yes"), (100, 501, "without checkpoint"), (501, 600, "NO")],
)
def test_a_goal_is_judged_with_the_checkpoint(us: float, saved: float, met: str) -> None:
    assert replace(ROW, us=us, us_with_checkpoint=saved).met == met


def test_a_machine_without_a_goal_is_shown_for_information() -> None:
    assert replace(ROW, scenario="n4x32s-dist").met == ""


def test_only_scenarios_whose_last_pods_are_all_admitted_are_rows() -> None:
    us = [9.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    admitted = Times([True] * 6, us, [2 * t for t in us])
    assert row("n2x16-dist", admitted, 10) == Row("n2x16-dist", 10, 3.0, 6.0)
    rejected = Times([True, False, True, True, True, True], us, us)
    assert row("n2x16-dist", rejected, 10) is None
    assert rejections(rejected) == [1.0]


def test_a_table_is_aligned_with_numbers_to_the_right() -> None:
    lines = list(markdown(("name", "µs"), [("a", 1234.5), ("long", 0.5)]))
    assert lines == [
        "| name |    µs |",
        "| ---- | ----: |",
        "| a    | 1,234 |",
        "| long |  0.50 |",
    ]
