"""Runs as cells: grouping, labels, dense accuracies, budgets and holes."""

from __future__ import annotations

import pytest

from biprune.experiments.sweep import grid
from biprune.methods import IMP
from biprune.report import Hole, summarise
from hand_records import dense, failed, run, seeds


def test_a_cell_by_hand() -> None:
    (comparison,) = summarise(
        [
            run("bip", 0.9, 0, 90.0, backward_passes=100, seconds=10.0),
            run("bip", 0.9, 1, 91.0, backward_passes=200, seconds=11.0),
            run("bip", 0.9, 2, 92.0, backward_passes=300, seconds=15.0),
        ]
    )
    (cell,) = comparison.cells
    assert (cell.label, cell.method, cell.sparsity) == ("bip", "bip", 0.9)
    assert (cell.accuracy.mean, cell.accuracy.std, cell.accuracy.n) == (91.0, 1.0, 3)
    assert cell.accuracy.values == [90.0, 91.0, 92.0]
    assert (cell.passes, cell.seconds) == (200.0, 12.0)
    assert comparison.dense is None
    assert comparison.holes == ()


def test_methods_stand_in_the_order_of_the_registry_and_sparsities_ascend() -> None:
    (comparison,) = summarise([run("grasp", 0.9), run("imp", 0.5), run("bip", 0.7)])
    assert comparison.labels == ["bip", "imp", "grasp"]
    assert comparison.sparsities == (0.5, 0.7, 0.9)


def test_settings_that_differ_are_not_compared() -> None:
    records = [
        run("bip"),
        run("bip", spec={"structure": "filter"}),
        run("bip", spec={"data": "cifar10"}),
        run("bip", spec={"dense": {"epochs": 5}}),
        run("bip", spec={"dense": {"epochs": 5}, "data_options": {"subset": 100}}),
    ]
    titles = [
        "resnet20 on cifar10, pruned by weight",
        "resnet20 on digits, pruned by weight",
        "resnet20 on digits, pruned by weight (data subset=100, dense epochs=5)",
        "resnet20 on digits, pruned by weight (dense epochs=5)",
        "resnet20 on digits, pruned by filter",
    ]
    assert [comparison.title for comparison in summarise(records)] == titles
    assert [comparison.title for comparison in summarise(records[::-1])] == titles


STRUCTURES = ["weight", "filter", "channel", "group", "2:4", "4:8", "8:16"]


def test_structures_stand_as_they_are_listed_and_patterns_behind_them() -> None:
    records = [run(sparsity=0.5, spec={"structure": name}) for name in sorted(STRUCTURES)]
    found = [comparison.setting.structure for comparison in summarise(records)]
    assert found == STRUCTURES


def test_variants_are_labelled_by_what_differs() -> None:
    def labels(*settings: dict[str, object], method: str = "bip") -> list[str]:
        records = [run(method, spec={"settings": given}) for given in settings]
        return summarise(records)[0].labels

    assert labels({"epochs": 5}) == ["bip"]
    assert labels({}, {"gamma": 0.5}) == ["bip", "bip (gamma=0.5)"]
    assert labels({"epochs": 5, "score_lr": 2.0}, {"epochs": 5, "score_lr": 0.5}) == [
        "bip (score_lr=0.5)",
        "bip (score_lr=2)",
    ]
    ours = labels({"passes": 2}, {"kappa": 0.0}, method="bip-plus")
    assert ours == ["bip-plus (kappa=0)", "bip-plus (passes=2)"]


def test_the_stops_of_imp_make_no_variants_of_one_curve() -> None:
    specs = grid(["imp"], model="resnet20", data="digits", sparsities=[0.5, 0.7, 0.9])
    assert specs[-1].settings["stops"] == [0.5, 0.7]
    records = [run("imp", s.sparsity, spec={"settings": s.settings}) for s in specs]
    assert summarise(records)[0].labels == ["imp"]
    other = {"settings": {"stops": [0.6]}}
    both = summarise([*records, run("imp", 0.9, spec=other)])[0].labels
    assert both == ["imp", "imp (stops=[0.5, 0.7])", "imp (stops=[0.5])", "imp (stops=[0.6])"]
    rewound = IMP(rewind_epoch=0).settings
    twice = [*records, *(run("imp", s, spec={"settings": rewound}) for s in (0.5, 0.7, 0.9))]
    assert "imp (rewind_epoch=0)" in " ".join(summarise(twice)[0].labels)


def test_one_column_for_a_power_and_its_decimal() -> None:
    (comparison,) = summarise([run("bip", 0.488), run("imp", 1 - 0.8**3)])
    assert comparison.sparsities == (0.488,)


def test_dense_comes_from_dense_runs_else_from_what_pruned_runs_say() -> None:
    records = [
        dense(0, 90.0),
        run("bip", seed=0, dense_accuracy=50.0),
        run("bip", seed=1, dense_accuracy=92.0),
        dense(0, 10.0, spec={"dense": {"epochs": 5}}),  # of another recipe
    ]
    comparison, alone = summarise(records)
    assert comparison.dense.by_seed == {0: 90.0, 1: 92.0}
    assert (comparison.dense.mean, comparison.dense.n) == (91.0, 2)
    assert comparison.dense.std == pytest.approx(2**0.5)
    assert alone.cells == ()
    assert alone.dense.by_seed == {0: 10.0}


def test_dense_runs_belong_to_every_structure() -> None:
    records = [dense(0, 90.0), run("bip"), run("bip", spec={"structure": "filter"})]
    assert [comparison.dense.mean for comparison in summarise(records)] == [90.0, 90.0]


def test_the_control_method_is_no_row() -> None:
    (comparison,) = summarise([run("dense", 0.0, 0, 93.0), run("bip", 0.9)])
    assert comparison.labels == ["bip"]
    assert comparison.sparsities == (0.9,)
    assert comparison.dense.mean == 93.0


def test_budgets_are_compared_within_a_sparsity() -> None:
    (comparison,) = summarise(
        [
            run("bip", 0.5, backward_passes=100),
            run("imp", 0.5, backward_passes=102),
            run("omp", 0.5, backward_passes=100),
            run("gmp", 0.5, backward_passes=103),
            run("hydra", 0.5, backward_passes=100),
            run("bip", 0.9, backward_passes=300),
        ]
    )
    row = {(cell.label, cell.sparsity): cell for cell in comparison.cells}
    assert row["gmp", 0.5].budget_ratio == 1.03
    flagged = [place for place, cell in row.items() if cell.has_other_budget]
    assert flagged == [("gmp", 0.5)]  # 2 % is within bounds, and a column of one is its own median


def test_a_budget_of_nothing_is_no_ratio() -> None:
    (comparison,) = summarise([run("bip", backward_passes=0)])
    assert comparison.cells[0].budget_ratio is None
    assert not comparison.cells[0].has_other_budget


def test_holes_are_listed_with_their_error() -> None:
    (comparison,) = summarise(
        [
            dense(0, 90.0),
            dense(1, None, status="failed", error="no disk"),
            *seeds("bip", 0.5, 90.0, 91.0),
            *seeds("bip", 0.9, 90.0, 91.0),
            run("imp", 0.5, 0, 90.0),
            failed("imp", 0.5, 1, "it broke"),
            run("imp", 0.9, 0, None),
            run("imp", 0.9, 1, float("nan")),
            *seeds("omp", 0.5, 90.0, 91.0),
            *seeds("gmp", 0.5, 90.0, 91.0),
            run("gmp", 0.9, 1, 90.0),
        ]
    )
    assert comparison.holes == (
        Hole("dense", 0.0, 1, "no disk"),
        Hole("imp", 0.5, 1, "it broke"),
        Hole("imp", 0.9, 0, "finished with test accuracy None"),
        Hole("imp", 0.9, 1, "finished with test accuracy nan"),
        Hole("gmp", 0.9, 0, "no record"),  # and none of omp, which was not to run there
    )
    grid = comparison.grid()
    assert grid["imp"][0.5].accuracy.values == [90.0]
    assert grid["imp"][0.9] is None
    assert grid["omp"][0.9] is None
    assert list(grid) == ["bip", "imp", "omp", "gmp"]
    assert comparison.dense.by_seed == {0: 90.0}


def test_a_finished_record_replaces_a_failed_one_of_the_same_run() -> None:
    for records in ([failed("bip"), run("bip")], [run("bip"), failed("bip")]):
        (comparison,) = summarise(records)
        assert comparison.holes == ()
        assert comparison.cells[0].accuracy.values == [90.0]


def test_no_records_no_comparisons() -> None:
    assert summarise([]) == []
