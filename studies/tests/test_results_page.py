"""The tables of the pages, from records whose numbers are known, and those that are committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from biprune.experiments.record import RunRecord
from hand_records import run
from studies.archive import load
from studies.laptop_runs import Runs, dense_line, made_line
from studies.past_tables import settings_table
from studies.results_page import filled, tables
from studies.tests.laptop_records import of


def setting(changes: dict[str, Any], *accuracies: float, **made: Any) -> dict[str, RunRecord]:
    """Runs of version 0.1 on the seeds that settings were tried on."""
    spec = {"data": "cifar10", "structure": "weight", "settings": {"epochs": 10, **changes}} | made
    found = [
        run("bip-plus-0.1", 0.95, 100 + number, accuracy, spec=spec)
        for number, accuracy in enumerate(accuracies)
    ]
    return {record.key: record for record in found}


def test_what_a_setting_was_worth() -> None:
    records = setting({}, 70.0, 71.0, 72.0)
    records |= setting({"lr": 0.01}, 69.0, 69.0)
    records |= setting({"passes": 2, "epochs": 5}, 69.0, 69.0, 72.0)  # -1, -2, 0
    records |= setting({"epochs": 20}, 90.0, 90.0)  # of another length
    records |= setting({}, 60.0, structure="filter")
    head = "| change (seeds) | CIFAR-10 | digits | its filters | its channels |"
    default = "| none | 71.00 ± 1.00 (3) | - | 60.00 (1) | - |"
    slower = "| `lr=0.01` | -1.50 (2) | - | - | - |"
    twice = "| `passes=2` | -1.00 ± 0.58 (3) | - | - | - |"
    assert settings_table(records).splitlines() == [
        head,
        "|---|---:|---:|---:|---:|",
        default,
        slower,
        twice,
    ]
    assert settings_table(records, ["", "passes=2", "ramp=2"]).splitlines()[2:] == [default, twice]


@pytest.mark.parametrize(("name", "count"), [("docs/results.md", 11), ("README.md", 4)])
def test_the_pages_have_what_the_committed_records_say(name: str, count: int) -> None:
    root = Path(__file__).parents[2]
    page = (root / name).read_text(encoding="utf-8")
    found = tables(load())
    assert page.count("<!-- end -->") == count
    assert filled(page, found) == page
    assert all("± " in found[place] for place in ("accuracy", "past-claims", "claims", "settings"))
    assert found["headline"].count("\n") >= 5  # head, rule, two claims, a note on its marks


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
