"""What the studies run."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest

from biprune.data import DATASETS
from biprune.experiments.costs import SPEEDS, Scale, estimate
from biprune.experiments.presets.base import SIZES
from biprune.experiments.record import RunSpec
from biprune.methods import IMP
from biprune.models import MODELS
from studies.past_methods import PAST
from studies.presets import CLAIM_SEEDS, STUDIES

PAGE = (Path(__file__).parents[2] / "docs/results.md").read_text(encoding="utf-8")
SCALES: tuple[Scale, ...] = get_args(Scale)
METHODS = {
    "full-size": {"bip-plus"},
    # Of its rivals with what it has, and of itself without learning.
    "controls": {"bip-plus", "gmp", "imp", "magnitude", "snip"},
}


@cache
def built(name: str, scale: Scale = "laptop") -> list[RunSpec]:
    return STUDIES[name].specs(scale)


def seeds(name: str, scale: Scale) -> set[int]:
    usual = set(SIZES[scale].seeds)
    if scale == "smoke":
        return usual
    return {
        "methods": {*usual, *CLAIM_SEEDS},
        "claims": {*usual, *CLAIM_SEEDS},
        "controls": {*usual, *(CLAIM_SEEDS if scale == "laptop" else ())},
        "full-size": {0},
    }[name]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_expands_at_every_scale(name: str, scale: Scale) -> None:
    specs = built(name, scale)
    assert specs
    assert max(Counter(spec.key for spec in specs).values()) == 1
    assert {spec.seed for spec in specs} == seeds(name, scale)
    assert {spec.model for spec in specs} <= MODELS.keys()
    assert {spec.data for spec in specs} <= DATASETS.keys()
    methods = {spec.method for spec in specs}
    assert not methods & PAST.keys()
    assert methods == METHODS[name] if name in METHODS else methods > {"bip", "bip-plus", "gmp"}


def test_the_page_has_every_study_and_counts_right() -> None:
    named = set(re.findall(r"python -m studies\.run ([a-z][\w-]*)", PAGE))
    assert named == STUDIES.keys()
    cost = estimate(spec for name in STUDIES for spec in built(name))
    counted = f"{cost.runs:,} runs, {cost.dense_runs} dense, {cost.time(SPEEDS['laptop'])}"
    assert counted in PAGE


def test_bip_gets_a_fifth_of_imps_passes() -> None:
    ours = [spec for spec in built("methods") if spec.method == "bip-plus"]
    longer = {s.sparsity: s.settings["epochs"] for s in ours if s.settings["epochs"] > 20}
    assert longer == {0.9: 44, 0.95: 56, 0.98: 72}  # 20 epochs in each of 11, 14 and 18 rounds
    for sparsity, passes in longer.items():
        assert passes == IMP(epochs=20).data_passes(sparsity) / 5


@pytest.mark.parametrize("scale", ["laptop", "smoke"])
def test_all_others_get_the_same_passes(scale: Scale) -> None:
    passes = SIZES[scale].passes
    for spec in built("methods", scale):
        epochs = spec.resolved["settings"]["epochs"]
        if spec.method == "imp":
            assert epochs == passes
        elif not (spec.method == "bip-plus" and epochs > passes):
            assert spec.build_method().data_passes(spec.sparsity) == passes


@pytest.mark.parametrize(
    ("method", "changes"),
    [("bip-plus", {"nesterov": False}), ("gmp", {"nesterov": True})],
)
def test_the_closest_have_each_others_momentum_too(method: str, changes: dict[str, bool]) -> None:
    ours = [spec for spec in built("methods") if spec.method == method]
    runs: list[tuple[Any, ...]] = [(s.settings, s.sparsity, s.seed) for s in ours]
    for sparsity, seed in itertools.product((0.9, 0.95, 0.98), range(5)):
        assert ({"epochs": 20}, sparsity, seed) in runs
        assert ({"epochs": 20, **changes}, sparsity, seed) in runs
    assert [seed for _, sparsity, seed in runs if sparsity == 0.8] == [0, 1, 2]


def test_the_full_size_is_the_papers_also_on_a_laptop() -> None:
    specs = built("full-size")
    assert [spec.sparsity for spec in specs] == [0.738, 0.9]
    for spec in specs:
        assert (spec.model, spec.data) == ("resnet20", "cifar10")
        assert spec.data_options == {"val_fraction": 0.0}
        assert (spec.dense["epochs"], spec.resolved["settings"]["epochs"]) == (30, 20)
