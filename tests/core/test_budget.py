from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from biprune.cli.printing import print_budget
from biprune.core.budget import CostModel, counts_within, kept_fractions, unit_costs
from biprune.core.masks import Masks
from biprune.core.parameters import parameter_names
from biprune.core.selection import check_kept, select_units
from biprune.methods import GMP
from biprune.methods.attached import Rule
from biprune.methods.base import Target
from biprune.structured.find import group_structure
from hand_groups import TwoGroups, cost, two_groups

SIZES = {"first.weight": 8, "second.weight": 12}


@pytest.mark.parametrize("measure", ["units", "macs", "params"])
def test_cost_is_that_of_the_smaller_net(measure) -> None:
    model = CostModel(two_groups(measure=measure))
    for counts in product(range(9), range(13)):
        assert model(counts) == pytest.approx(cost(counts, measure))
    assert model.dense == cost((8, 12), measure)


def test_kept_fractions() -> None:
    found = kept_fractions(two_groups(), (4, 6))
    assert found == pytest.approx(
        {m: cost((4, 6), m) / cost((8, 12), m) for m in ("units", "macs", "params")}
    )


@given(
    seed=st.integers(0, 99),
    sparsity=st.floats(0.0, 0.85),
    measure=st.sampled_from(["macs", "params", "units"]),
    scope=st.sampled_from(["layer", "global"]),
    round_to=st.sampled_from([1, 2, 4]),
)
def test_within_the_budget_and_nothing_more_fits(seed, sparsity, measure, scope, round_to) -> None:
    structure = two_groups(measure=measure, scope=scope, round_to=round_to)
    generator = torch.Generator().manual_seed(seed)
    units = {name: torch.rand(size, generator=generator) for name, size in SIZES.items()}
    limit = (1 - sparsity) * cost((8, 12), measure)
    if cost((round_to, round_to), measure) > limit * (1 + 1e-9):
        with pytest.raises(ValueError, match="cannot be pruned to"):
            structure.check_reachable(sparsity, SIZES, allow_empty=False)
        return
    counts = counts_within(units, sparsity, structure)
    assert all(count % round_to == 0 and count > 0 for count in counts)
    assert cost(tuple(counts), measure) <= limit * (1 + 1e-6)
    for index, size in enumerate(SIZES.values()):
        more = [*counts[:index], counts[index] + round_to, *counts[index + 1 :]]
        assert more[index] > size or cost(tuple(more), measure) > limit
    if (measure, round_to) == ("units", 1):
        return  # selected exactly, not under a budget
    kept = select_units(units, sparsity, structure)
    for (name, score), count in zip(units.items(), counts, strict=True):
        assert int(kept[name].sum()) == count
        assert count == len(score) or score[kept[name]].min() >= score[~kept[name]].max()
    weights = {n: p for n, p in parameter_names(TwoGroups()).items() if n in structure.tensors}
    check_kept(Masks(structure.expand(kept, weights), structure), sparsity, allow_empty=False)


@pytest.mark.parametrize("dead", [0.0, -torch.inf])
@pytest.mark.parametrize("scope", ["layer", "global"])
def test_dead_units_do_not_come_back(dead: float, scope: str) -> None:
    structure = two_groups(measure="macs", scope=scope)
    units = {name: torch.arange(1.0, size + 1) for name, size in SIZES.items()}
    units["first.weight"][3:] = dead
    first, second = counts_within(units, 0.0, structure)
    assert (first, second) == (3, 12)


def test_gmp_starts_dense_whatever_the_signs() -> None:
    model = TwoGroups()
    for parameter in model.parameters():
        parameter.data.fill_(-1.0)
    target = Target(0.5, two_groups(measure="macs"))
    with torch.no_grad():
        rule: Rule = GMP.rule(model, target, GMP(), steps=10)
    assert rule.masks.sparsity == 0.0


def test_the_scope_decides_whose_units_go() -> None:
    low, high = torch.arange(8.0), 100 + torch.arange(12.0)
    units = {"first.weight": low, "second.weight": high}
    even, together = (
        counts_within(units, 0.5, two_groups(measure="macs", scope=scope))
        for scope in ("layer", "global")
    )
    assert even[0] / 8 == pytest.approx(even[1] / 12, abs=0.3)
    assert together[0] < even[0]
    assert together[1] == 12


def test_a_method_that_overspends_is_found_out() -> None:
    structure = two_groups(measure="macs")
    weights = {n: p for n, p in parameter_names(TwoGroups()).items() if n in structure.tensors}
    kept = {name: torch.ones(size, dtype=torch.bool) for name, size in SIZES.items()}
    masks = Masks(structure.expand(kept, weights), structure)
    with pytest.raises(RuntimeError, match=r"More than 0\.5 of the macs"):
        check_kept(masks, 0.5, allow_empty=False)


def test_what_goes_with_one_unit() -> None:
    """A 4-6-3 net: a row of six weights and its bias's one, and a column of three."""
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    structure, _ = group_structure(net, torch.zeros(2, 4))
    assert unit_costs(structure) == {"0.weight": (4 + 3, 4 + 1 + 3)}


def test_the_command_says_what_a_unit_is_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    structure, _ = group_structure(net, torch.zeros(2, 4))
    weights = {n: p for n, p in parameter_names(net).items() if n in structure.tensors}
    kept = {"0.weight": torch.ones(6, dtype=torch.bool)}
    print_budget(Masks(structure.expand(kept, weights), structure), structure, 0.0)
    shown = capsys.readouterr().out
    row = next(line for line in shown.splitlines() if structure.groups[0].title in line)
    assert row.split()[-2:] == ["7", "8"]
