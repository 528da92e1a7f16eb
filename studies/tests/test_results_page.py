"""The tables of the pages, from records whose numbers are known, and those that are committed."""

from __future__ import annotations

from pathlib import Path
from statistics import NormalDist

import pytest

from biprune.experiments.record import RunRecord
from studies.archive import load
from studies.laptop_runs import Runs, dense_line, made_line
from studies.presets import STUDIES
from studies.results_page import filled, tables
from studies.settings_worth import settings_table
from studies.tests.laptop_records import of


def test_what_a_setting_is_worth() -> None:
    records: dict[str, RunRecord] = {}
    assert settings_table(records).count("\n") == 1
    for spec in STUDIES["settings"].specs("laptop"):
        right = {"epochs": 70.0, "passes": 70.0 - spec.seed % 10, "lr": 69.0 + spec.seed % 10}
        longer = 1.0 if spec.settings == {"epochs": 40} else 0.0
        changed = {*spec.settings} - {"epochs"} or {"epochs"}
        known = spec.seed < (102 if changed == {"lr"} else 103)
        if spec.data == "digits" and changed & {*right} and known:
            accuracy = right[changed.pop()] + longer
            records[spec.key] = RunRecord(spec=spec, resolved=spec.resolved, test_accuracy=accuracy)
    assert settings_table(records).splitlines()[2:] == [
        "| none | 70.00 ± 0.00 (3) | - | - | - |",
        "| `passes=2` | -1.00 ± 0.58 (3) | - | - | - |",
        *(f"| `lr={lr}` | -0.50 (2) | - | - | - |" for lr in (0.01, 0.03, 0.3)),
        "| 0.5 times the epochs | +0.00 ± 0.00 (3) | - | - | - |",
        "| 2 times the epochs | +1.00 ± 0.00 (3) | - | - | - |",
    ]


def test_two_seeds_have_their_error_from_all_changes() -> None:
    """Runs that spread by 0.5 have differences, of two means of two, that spread by 0.5.

    One seed is better than the other by two points, and a change that breaks training by 60.
    """
    records: dict[str, RunRecord] = {}
    study = [s for s in STUDIES["settings"].specs("laptop") if s.data == "cifar10"]
    study = [s for s in study if s.structure == "weight"]
    pairs = [[s for s in study if s.settings == x.settings] for x in study if x.seed == 100]
    gaps = NormalDist(2.0, 0.5 * 2**0.5)
    for number, pair in enumerate(pairs):
        gap = gaps.inv_cdf((number + 0.5) / len(pairs)) if number else 60.0
        for spec in pair:
            accuracy = 68.0 + gap * (spec.seed == 100)
            records[spec.key] = RunRecord(spec=spec, resolved=spec.resolved, test_accuracy=accuracy)
    head, tail = settings_table(records).splitlines()[-2:]
    assert head == "On CIFAR-10, with two seeds, a difference has a standard error of about"
    assert tail == f"0.50, by the spread of all {len(pairs)}."


def test_few_changes_do_not_tell_an_error() -> None:
    records: dict[str, RunRecord] = {}
    for number, spec in enumerate(STUDIES["settings"].specs("laptop")):
        if (spec.data, spec.structure) == ("cifar10", "filter"):
            accuracy = 60.0 + number % 7
            records[spec.key] = RunRecord(spec=spec, resolved=spec.resolved, test_accuracy=accuracy)
    assert "standard error" not in settings_table(records)


def test_filters_and_channels_are_studied_apart() -> None:
    records: dict[str, RunRecord] = {}
    accuracies = {"filter": 60.0, "channel": 65.0}
    for spec in STUDIES["settings"].specs("laptop"):
        if (known := accuracies.get(spec.structure)) is not None:
            accuracy = known - (spec.settings.get("settle") is False) * known / 10
            records[spec.key] = RunRecord(spec=spec, resolved=spec.resolved, test_accuracy=accuracy)
    lines = settings_table(records).splitlines()
    assert "| none | - | - | 60.00 ± 0.00 (2) | 65.00 ± 0.00 (2) |" in lines
    assert "| `score_pruned=True` | - | - | +0.00 (2) | +0.00 (2) |" in lines
    assert "| `settle=False` | - | - | -6.00 (2) | -6.50 (2) |" in lines


@pytest.mark.parametrize(("name", "count"), [("docs/results.md", 9), ("README.md", 3)])
def test_the_pages_have_what_the_committed_records_say(name: str, count: int) -> None:
    root = Path(__file__).parents[2]
    page = (root / name).read_text(encoding="utf-8")
    found = tables(load())
    assert page.count("<!-- end -->") == count
    assert filled(page, found) == page
    assert all("± " in found[place] for place in ("accuracy", "our-claims", "claims", "settings"))
    assert found["headline"].count("\n") == 5  # head, rule, two claims, a note on its marks


def test_a_table_goes_to_its_place_and_the_rest_stays() -> None:
    page = "a\n<!-- one -->\nold\n\nolder\n<!-- end -->\nb\n<!-- two -->\n\n<!-- end -->\n"
    assert filled(page, {"one": "1", "two": "2\n3"}) == (
        "a\n<!-- one -->\n1\n<!-- end -->\nb\n<!-- two -->\n2\n3\n<!-- end -->\n"
    )


def test_every_table_has_a_place() -> None:
    root = Path(__file__).parents[2]
    pages = [(root / name).read_text(encoding="utf-8") for name in ("docs/results.md", "README.md")]
    for place in tables(load()):
        assert any(f"<!-- {place} -->" in page for page in pages), place


def test_dense_accuracies_are_of_the_networks_that_were_pruned() -> None:
    runs = of("bip-plus", 0.9, 71.0, 72.0, dense_accuracy=70.0)
    runs += of("gmp", 0.9, 71.0, dense_accuracy=70.0)
    before = "Dense, before pruning: 70.00 ± 0.00 (2)."
    assert dense_line(Runs(runs)) == before
    longer = {"settings": {"epochs": 20, "nesterov": True}}
    runs += of("gmp", 0.0, 73.0, dense_accuracy=70.0, made=longer)
    after = "Not pruned but trained on for 20 passes: 73.00 (1)."
    assert dense_line(Runs(runs)) == f"{before} {after}"


def test_the_page_says_when_and_on_what() -> None:
    where = {"processor": "A", "torch": "2.13.0", "finished": "2026-01-02T03:04:05+00:00"}
    later = where | {"finished": "2026-01-04T00:00:00+00:00"}
    runs = [*of("bip-plus", 0.9, 70.0, environment=where), *of("gmp", 0.9, 70.0, environment=where)]
    said = "A, one thread a run; torch 2.13.0; 2026-01-02"
    assert made_line(Runs(runs)) == f"{said}."
    runs += of("omp", 0.9, 70.0, environment=later)
    assert made_line(Runs(runs)) == f"{said} to 2026-01-04."
