"""What charts draw: their data and encodings, against numbers known by hand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from biprune.methods import METHODS
from biprune.report import ReferencePoint, summarise
from biprune.report.accuracy_charts import accuracy_by_cost, accuracy_by_sparsity, sparsest_tickets
from biprune.report.history_charts import by_epoch, layers_by_epoch, layers_by_method
from biprune.report.results import Comparison
from biprune.report.theme import dark_colours, styles
from hand_records import dense, epochs, realistic, run, seeds

Spec = dict[str, Any]


@pytest.fixture
def comparison() -> Comparison:
    (made,) = summarise(realistic())
    return made


def layers(spec: Spec, mark: str) -> list[Spec]:
    return [layer for layer in spec["layer"] if layer["mark"]["type"] == mark]


def rows(spec: Spec, layer: Spec) -> list[dict[str, Any]]:
    return layer.get("data", spec.get("data"))["values"]


def row_of(spec: Spec, layer: Spec, **fields: object) -> dict[str, Any]:
    (found,) = [r for r in rows(spec, layer) if fields.items() <= r.items()]
    return found


def test_accuracy_against_sparsity(comparison: Comparison) -> None:
    spec = accuracy_by_sparsity(comparison).to_dict()
    (points,) = layers(spec, "point")
    bip = row_of(spec, points, method="bip", sparsity="90 %")
    assert bip["left"] == pytest.approx(10)
    assert bip["accuracy"] == pytest.approx(90.9)
    assert (bip["low"], bip["high"]) == pytest.approx((90.9 - 0.5**0.5, 90.9 + 0.5**0.5))
    assert (bip["mean"], bip["runs"]) == ("90.90 ± 0.71", 2)
    assert (bip["values"], bip["to dense"], bip["bound"]) == ("90.40, 91.40", "+0.40", "+0.40")
    assert len(rows(spec, points)) == 5  # 3 methods x 2 sparsities, less the hole
    (rule,) = layers(spec, "rule")
    assert row_of(spec, rule, method="dense")["accuracy"] == 90.5
    (band,) = layers(spec, "rect")
    assert row_of(spec, band)["low"] == pytest.approx(90.5 - 0.5**0.5)


def test_sparsity_is_spaced_by_what_is_left(comparison: Comparison) -> None:
    x = layers(accuracy_by_sparsity(comparison).to_dict(), "point")[0]["encoding"]["x"]
    assert (x["field"], x["scale"]["type"], x["scale"]["reverse"]) == ("left", "log", True)
    assert x["axis"]["values"] == [50, 10]


def test_the_legend_hides_and_shows_a_method(comparison: Comparison) -> None:
    spec = accuracy_by_sparsity(comparison).to_dict()
    (shown,) = [param for param in spec["params"] if param["name"] == "shown"]
    assert shown["bind"] == "legend"
    assert shown["select"]["toggle"] == "true"
    assert shown["value"] == [{"method": "bip"}, {"method": "imp"}, {"method": "omp"}]
    (points,) = layers(spec, "point")
    assert points["encoding"]["opacity"]["condition"] == [{"param": "shown", "value": 1}]
    assert points["encoding"]["opacity"]["value"] < 0.1


def test_published_numbers_are_hollow_and_dotted() -> None:
    paper = [
        ReferencePoint("bip", 0.5, 92.0, 0.3, "resnet20", "digits", "Figure 1"),
        ReferencePoint("bip", 0.9, 91.0, None, "resnet20", "digits", "Figure 1"),
        ReferencePoint("rigl", 0.8, 90.0, None, "resnet20", "digits", "Figure 2"),
        ReferencePoint("dense", 0.0, 92.5, None, "resnet20", "digits", "Table 1"),
    ]
    (comparison,) = summarise(realistic(), paper)
    spec = accuracy_by_sparsity(comparison).to_dict()
    points = layers(spec, "point")[-1]
    assert points["mark"]["filled"] is False
    published = row_of(spec, points, method="bip", sparsity="50 %")
    assert (published["accuracy"], published["mean"]) == (92.0, "92.00 ± 0.30")
    assert published["source"] == "Figure 1"
    assert layers(spec, "line")[-1]["mark"]["strokeDash"] == [2, 3]
    assert points["encoding"]["color"]["scale"]["domain"] == ["bip", "imp", "omp", "rigl"]
    assert points["encoding"]["x"]["axis"]["values"] == [50, 20, 10]  # dense is no column
    assert row_of(spec, layers(spec, "rule")[-1])["accuracy"] == 92.5


@pytest.mark.parametrize("cost", ["seconds", "passes"])
def test_accuracy_against_cost(comparison: Comparison, cost: str) -> None:
    spec = accuracy_by_cost(comparison, cost).to_dict()
    (points,) = layers(spec, "point")
    assert points["encoding"]["x"]["field"] == cost
    imp = row_of(spec, points, method="imp", sparsity="50 %")
    assert (imp["passes"], imp["seconds"], imp["mean"]) == (300, 10, "90.70 ± 0.71")
    (menu,) = [param for param in spec["params"] if param["name"] == "chosen"]
    assert menu["bind"]["options"] == ["50 %", "90 %"]
    assert menu["value"] == "90 %"  # where all three methods are


def test_costs_far_apart_are_drawn_on_a_logarithmic_scale() -> None:
    def scale(passes: int) -> Spec:
        records = [run("bip", backward_passes=100), run("imp", backward_passes=passes)]
        spec = accuracy_by_cost(summarise(records)[0], "passes").to_dict()
        return layers(spec, "point")[0]["encoding"]["x"]["scale"]

    assert scale(1000)["type"] == "log"
    assert "type" not in scale(200)
    assert "type" not in scale(0)


def test_sparsest_tickets() -> None:
    (comparison,) = summarise(
        [
            *(dense(seed, 90.0) for seed in range(3)),
            *seeds("bip", 0.5, 90.1, 90.2, 90.3),
            *seeds("bip", 0.9, 89.9, 90.1, 91.0),
            *seeds("imp", 0.5, 89.0, 89.0, 89.0),
        ]
    )
    spec = sparsest_tickets(comparison).to_dict()
    hollow, filled = layers(spec, "point")
    assert (hollow["mark"]["filled"], filled["mark"]["filled"]) == (False, True)
    assert [(r["method"], r["sparsity"]) for r in rows(spec, hollow)] == [("bip", "90 %")]
    assert [(r["method"], r["sparsity"]) for r in rows(spec, filled)] == [("bip", "50 %")]
    (none,) = layers(spec, "text")
    assert rows(spec, none) == [{"method": "imp"}]


def test_epochs_are_means_over_the_seeds(comparison: Comparison) -> None:
    spec = by_epoch(comparison, "iou").to_dict()
    (points,) = layers(spec, "point")
    last = row_of(spec, points, method="bip", sparsity="90 %", epoch=3)
    assert last["iou"] == pytest.approx(0.955)
    assert (last["low"], last["runs"]) == (pytest.approx(0.955 - 0.01 / 2**0.5, abs=1e-5), 2)
    loss = by_epoch(comparison, "loss").to_dict()
    curve = [r["loss"] for r in rows(loss, layers(loss, "line")[0])[:3]]
    assert curve == [1.0, 0.5, 0.25]
    validation = by_epoch(comparison, "accuracy").to_dict()
    row = row_of(validation, layers(validation, "point")[0], method="imp", sparsity="50 %", epoch=3)
    assert row["accuracy"] == 90.5
    assert points["encoding"]["color"]["scale"]["domain"] == ["bip", "imp"]  # omp has no history


def test_only_the_last_round_is_drawn() -> None:
    history = epochs(loss=[3.0, 2.0, 1.5, 1.0])
    for entry, stage in zip(history[1:], ("round-1", "round-1", "round-2", "round-2"), strict=True):
        entry["stage"] = stage
    (comparison,) = summarise([run("imp", history=history)])
    spec = by_epoch(comparison, "loss").to_dict()
    drawn = [(r["epoch"], r["loss"]) for r in rows(spec, layers(spec, "line")[0])]
    assert drawn == [(1, 1.5), (2, 1.0)]


def test_gaps_in_a_history_are_left_out() -> None:
    history = epochs(loss=[1.0, 0.9, 0.8, 0.7], iou=[None, float("nan"), 0.5, 1.0])
    (comparison,) = summarise([run("bip", history=history, dense_accuracy=float("nan"))])
    spec = by_epoch(comparison, "iou").to_dict()
    assert [(r["epoch"], r["iou"]) for r in rows(spec, spec)] == [(3, 0.5), (4, 1.0)]
    assert layers_by_epoch(comparison) is None  # it moved, but says nothing of its layers
    assert comparison.dense is None


def test_layers_by_method(comparison: Comparison) -> None:
    spec = layers_by_method(comparison).to_dict()
    (cells,) = layers(spec, "rect")
    found = {(r["method"], r["sparsity"], r["layer"]): r["removed"] for r in rows(spec, cells)}
    assert found["bip", "90 %", "conv"] == 80.0
    assert found["imp", "50 %", "fc"] == 90.0
    assert cells["encoding"]["y"]["sort"] == ["conv", "fc"]


def test_layers_by_epoch_of_the_sparsest_ticket_that_moved(comparison: Comparison) -> None:
    spec = layers_by_epoch(comparison).to_dict()
    conv = [r["removed"] for r in rows(spec, spec) if r["layer"] == "conv"]
    assert conv == [10.0, 20.0, 30.0]


def test_nothing_to_draw_is_no_chart() -> None:
    (bare,) = summarise([run("bip")])
    assert sparsest_tickets(bare) is None  # no dense accuracy
    assert by_epoch(bare, "loss") is None
    assert layers_by_method(bare) is None
    assert layers_by_epoch(bare) is None
    (only_dense,) = summarise([dense()])
    assert accuracy_by_sparsity(only_dense) is None
    assert accuracy_by_cost(only_dense, "passes") is None


def test_a_method_looks_the_same_everywhere_and_its_variants_share_its_shape() -> None:
    one = styles({"bip": "bip", "imp": "imp"})
    other = styles({"omp": "omp", "imp": "imp"})
    assert one["imp"] == other["imp"]
    variants = list(styles(dict.fromkeys("abcde", "bip")).values())
    assert len({style.shape for style in variants}) == 1
    for before, after in pairwise(variants):
        assert before.colour != after.colour
        assert before.dash != after.dash
    assert variants[0] == one["bip"]


def test_every_colour_has_one_for_the_dark_and_no_two_share_it() -> None:
    swaps = dark_colours()
    named = {name: name for name in (*METHODS, "rigl")} | {"bip (gamma=2)": "bip"}
    for style in styles(named).values():
        assert swaps[style.colour] == style.on_dark
    light = [style.colour for style in styles({name: name for name in METHODS}).values()]
    assert len(set(light)) == len(light)


def test_long_histories_are_not_refused() -> None:
    """Altair refuses more than 5000 rows of a data frame."""
    count = 6000
    (comparison,) = summarise([run("bip", history=epochs(loss=[1.0] * count))])
    spec = by_epoch(comparison, "loss").to_dict()
    drawn = rows(spec, layers(spec, "point")[0])
    assert len(drawn) == count
    assert sum(row["marked"] for row in drawn) <= 10
