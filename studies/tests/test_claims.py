"""Verdicts on claims, from records whose differences are known."""

from __future__ import annotations

from typing import Any

import pytest

from biprune.experiments.record import RunRecord, RunSpec
from hand_records import epochs, failed
from studies.claims import CLAIMS, HEADLINES, NEWER, OUR_CLAIMS, PAST_CLAIMS
from studies.judging import Claim, ahead, claims_table, same_cost, settles
from studies.laptop_runs import (
    FEW,
    PAPER,
    Runs,
    accuracy_table,
    picking,
    units_table,
    versions_line,
)
from studies.presets import STUDIES
from studies.tests.laptop_records import of

GMP = [record for s in (0.9, 0.95, 0.98) for record in of("gmp", s, 70.0, 71.0, 72.0)]


def verdict(*bip: RunRecord, margin: float = 0.0) -> tuple[str, str]:
    check = ahead(picking("bip-plus"), picking("gmp"), (0.9, 0.95, 0.98), margin=margin)
    return check(Runs([*GMP, *bip]))


def test_a_claim_holds_where_every_difference_exceeds_its_error() -> None:
    clear = of("bip-plus", 0.9, 71.0, 72.0, 73.0)
    unclear = of("bip-plus", 0.95, 72.0, 70.0, 72.5)  # +2, -1, +0.5: 0.5 ± 0.87
    last = of("bip-plus", 0.98, 73.0, 74.0, 75.0)
    first, second = "90 %: **+1.00 ± 0.00** (3)", "95 %: +0.50 ± 0.87 (3)"
    assert verdict(*clear) == (first, "holds, so far")
    assert verdict(*clear, *of("bip-plus", 0.95, 73.0, 74.0, 75.0), *last)[1] == "holds"
    in_part = "in part: holds at 90 %, not shown at 95 %"
    assert verdict(*clear, *unclear) == (f"{first}, {second}", f"{in_part}, so far")
    in_part = "in part: holds at 90 % and 98 %, not shown at 95 %"
    assert verdict(*clear, *unclear, *last)[1] == in_part
    assert verdict(*unclear)[1] == "not shown, so far"
    worse = of("bip-plus", 0.9, 69.0, 70.5, 71.0)  # -1, -0.5, -1
    assert verdict(*worse)[1] == "does not hold, so far"
    assert verdict(*worse, *unclear)[1] == "not shown at 95 %, does not hold at 90 %, so far"


def test_as_accurate_is_more_so_but_for_a_margin() -> None:
    worse = of("bip-plus", 0.9, 69.6, 70.5, 71.7)  # -0.4, -0.5, -0.3: -0.4 ± 0.058
    assert verdict(*worse, margin=0.46)[1] == "holds, so far"
    assert verdict(*worse, margin=0.45)[1] == "not shown, so far"
    assert verdict(*worse, margin=0.34)[1] == "does not hold, so far"
    noisy = of("bip-plus", 0.9, 72.0, 70.0, 72.0)  # +2, -1, 0: 0.33 ± 0.88
    assert verdict(*noisy, margin=0.5)[1] == "not shown, so far"


def test_bold_is_what_the_bound_of_the_report_would_call_ahead() -> None:
    # +0.5, +0.2, +0.2: 0.3 ± 0.1, bound 0.3 - 2.92 * 0.1
    within = of("bip-plus", 0.9, 70.5, 71.2, 72.2)
    beyond = of("bip-plus", 0.95, 70.5, 71.1, 72.2)  # +0.5, +0.1, +0.2: 0.27 ± 0.12
    assert verdict(*within)[0] == "90 %: **+0.30 ± 0.10** (3)"
    assert verdict(*beyond) == ("95 %: +0.27 ± 0.12 (3)", "holds, so far")


def test_what_is_missing_is_not_judged() -> None:
    assert verdict(*of("bip-plus", 0.9, 75.0)) == ("90 %: +5.00 (1)", "not judged: too few seeds")
    numbers, said = verdict(*of("bip-plus", 0.9, 75.0, 76.5))
    assert (numbers, said) == ("90 %: +5.25 ± 0.25 (2)", "not judged: too few seeds")
    assert verdict(failed("bip-plus", 0.9)) == ("", "not judged: too few seeds")
    other_length = of("bip-plus", 0.9, 71.0, 72.0, length=10)
    other_setting = of("bip-plus", 0.9, 71.0, 72.0, made={"settings": {"epochs": 20, "lr": 0.2}})
    assert verdict(*other_length, *other_setting)[0] == ""


def test_cost_and_iou_of_the_published_method() -> None:
    fields = {"backward_passes": 100, "history": epochs(iou=[0.5, 0.6, 0.98, 0.992])}
    accuracies = (70.0, 71.0, 72.0)
    bip = [record for s in (0.8, 0.9) for record in of("bip", s, *accuracies, length=10, **fields)]
    stopped = {"settings": {"epochs": 20, "stops": [0.8]}}
    imp = of("imp", 0.8, 70.0, backward_passes=700)
    imp += of("imp", 0.9, 70.0, backward_passes=1100, made=stopped)
    runs = Runs([*bip, *imp])
    assert len(PAPER(runs, 0.8)) == 3
    said = "80 %: IMP takes 7 times the passes, 90 %: IMP takes 11 times the passes"
    assert same_cost(runs) == (said, "holds")
    flat = [r.model_copy(update={"backward_passes": 700}) for r in imp]
    assert same_cost(Runs([*bip, *flat]))[1] == "does not hold"
    dearer = [r.model_copy(update={"backward_passes": r.spec.seed + 1}) for r in bip]
    assert same_cost(Runs([*dearer, *imp]))[1] == "does not hold"
    assert settles(runs) == ("80 %: 0.500 to 0.992, 90 %: 0.500 to 0.992", "holds, so far")
    moving = {"history": epochs(iou=[0.5, 0.98])}
    unsettled = Runs(record.model_copy(update=moving) for record in bip)
    assert settles(unsettled)[1] == "does not hold, so far"
    one_seed = Runs(record for record in bip if record.spec.seed == 0)
    assert settles(one_seed)[1] == "not judged: too few seeds"


def rows(claims: Any, runs: list[RunRecord]) -> list[str]:
    return claims_table("head", claims, Runs(runs)).splitlines()[2:]


def test_the_tables_have_only_what_was_run() -> None:
    claim = "| more accurate than gmp at equal passes | `methods`"
    assert rows(OUR_CLAIMS, [*GMP, *of("bip-plus", 0.9, 71.0, 72.0, 73.0)]) == [
        f"{claim} | 90 %: **+1.00 ± 0.00** (3) | holds, so far |"
    ]
    assert claims_table("head", CLAIMS, Runs(GMP)) == "Not run yet."


def test_filters_are_judged_apart_from_weights() -> None:
    runs = of("omp", 0.6, 60.0, 61.0, 62.0, made={"structure": "filter"})
    runs += of("bip-plus", 0.6, 60.5, 62.0, 63.0, made={"structure": "filter"})
    runs += of("bip-plus", 0.6, 50.0, made={"structure": "channel"})
    claim = "| on filters more accurate than omp | `claims`"
    assert rows(OUR_CLAIMS, runs) == [f"{claim} | 60 %: **+0.83 ± 0.17** (3) | holds |"]
    assert units_table(Runs(runs)).splitlines() == [
        "| test accuracy, % (seeds) | filters, 60 % | channels, 60 % |",
        "|---|---:|---:|",
        "| bip-plus | 61.83 ± 1.26 (3) | 50.00 (1) |",
        "| omp | 61.00 ± 1.00 (3) | - |",
    ]


def judged(claim: Claim, ours: float) -> str:
    """The verdict if what the claim praises has `ours`, and whatever it is held against 70."""
    presets = {"methods", claim[1]}
    base = "bip-plus" if claim in OUR_CLAIMS else "bip"
    specs = {s.key: s for name in presets for s in STUDIES[name].specs("laptop")}
    if claim[0] == NEWER:
        now = [s for s in specs.values() if s.method == "bip-plus" and len(s.settings) == 1]
        past = [RunSpec(**s.model_dump() | {"method": "bip-plus-0.1"}) for s in now]
        specs |= {s.key: s for s in past}

    def made(spec: RunSpec) -> RunRecord:
        changes = {name: v for name, v in spec.settings.items() if name != "epochs"}
        own = spec.method == base and changes == PRAISED.get(claim[0], {})
        fields: dict[str, Any] = {"test_accuracy": ours if own else 70.0}
        fields |= {"history": epochs(iou=[0.5, 1.0]), "backward_passes": 1}
        return RunRecord(spec=spec, resolved=spec.resolved, **fields)

    return claim[2](Runs(map(made, specs.values())))[1]


PRAISED: dict[str, dict[str, Any]] = {  # which BiP, where it is not that of the defaults
    "with gmp's momentum more accurate than gmp": {"nesterov": False},
    "better with batches in reverse order than with the same": {"batches": "reverse"},
    "better with gamma 0.5 than with 0.1": {"gamma": 0.5},
    "better with gamma 0.5 than with 10": {"gamma": 0.5},
}
BY_ACCURACY = [c for c in [*OUR_CLAIMS, *CLAIMS] if c[2] not in (same_cost, settles)]


@pytest.mark.parametrize("claim", BY_ACCURACY, ids=lambda claim: claim[0])
def test_every_claim_is_about_bip_and_the_runs_of_its_preset(claim: Claim) -> None:
    assert judged(claim, 80.0) == "holds"
    assert judged(claim, 60.0) == "does not hold"


def test_no_claim_is_made_twice() -> None:
    assert {*PRAISED} <= {words for words, _, _ in [*CLAIMS, *OUR_CLAIMS]}
    for claims in (CLAIMS, OUR_CLAIMS, PAST_CLAIMS, HEADLINES):
        assert len({words for words, _, _ in claims}) == len(claims)


@pytest.mark.parametrize(
    "other",
    [
        {"data": "digits"},
        {"model": "resnet20"},
        {"model_options": {"width": 8}},
        {"data_options": {"subset": 10_000, "val_fraction": 0.0, "batch_size": 32}},
        {"dense": {"epochs": 40}},
        {"scope": "layer"},
    ],
)
def test_runs_on_anything_else_do_not_count(other: dict[str, Any]) -> None:
    assert verdict(*of("bip-plus", 0.9, 75.0, 76.0, 77.0, made=other))[0] == ""


def test_runs_on_seeds_for_trying_do_not_count() -> None:
    assert verdict(*of("bip-plus", 0.9, *[99.0] * 8)[5:])[0] == ""


def test_versions_are_told_apart_and_todays_appears_once_it_has_runs() -> None:
    before = of("bip-plus-0.1", 0.9, 60.0, 61.0, 62.0)
    assert "new rule, with no run here so far" in versions_line(Runs(before))
    both = [*before, *of("bip-plus", 0.9, 61.0, 62.0, 64.0)]
    assert accuracy_table(Runs(both), FEW).splitlines()[2:] == [
        "| bip-plus | - | 62.33 ± 1.53 (3) | - | - |",
        "| bip-plus-0.1 | - | 61.00 ± 1.00 (3) | - | - |",
    ]
    assert "new rule, with 3 runs here so far" in versions_line(Runs(both))
    assert rows(OUR_CLAIMS, both) == [
        f"| {NEWER} | `methods` | 90 %: **+1.33 ± 0.33** (3) | holds, so far |"
    ]
    assert claims_table("head", OUR_CLAIMS, Runs(before)) == "Not run yet."


def test_runs_with_dead_rows_are_marked_until_there_are_others() -> None:
    past = {"settings": {"epochs": 20, "score_dead_rows": True}}
    before = of("hydra", 0.9, 60.0, 61.0, 62.0, made=past)
    rows = {"hydra": picking("hydra")}
    head, _, line, _, note = accuracy_table(Runs([*GMP, *before]), rows).splitlines()
    assert line == "| hydra | - | 61.00 ± 1.00 (3)† | - | - |"
    assert note.startswith("† runs in which the scores of dead rows were learned")
    assert "†" not in head
    today = of("hydra", 0.9, 70.0, 71.0, 72.0)
    again = accuracy_table(Runs([*today, *GMP, *before]), rows).splitlines()
    assert again[2:] == ["| hydra | - | 71.00 ± 1.00 (3) | - | - |"]
    _, verdict = ahead(picking("hydra"), picking("gmp"), (0.9,))(Runs([*GMP, *before]))
    numbers, _ = ahead(picking("hydra"), picking("gmp"), (0.9,))(Runs([*GMP, *before]))
    assert (numbers, verdict) == ("90 %: -10.00 ± 0.00 (3)†", "does not hold")
