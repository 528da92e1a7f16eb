"""Numbers that were not made by a study: the tables of the documents are those of their records."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from studies import beside_torch_pruning, digits, past_tables
from studies.archive import FOLDER

ROOT = Path(__file__).parents[2]
METHODS = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs/performance.md").read_text(encoding="utf-8")


def stored(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))["rows"]


def test_the_tables_of_the_digits_are_those_of_their_records() -> None:
    assert digits.dead_rows_table(stored("dead-rows.json")) in METHODS
    assert digits.methods_table(stored("digits-95.json")) in METHODS


def test_the_tables_of_performance_are_those_of_their_records() -> None:
    options = Namespace(
        jsonl=FOLDER / "beside-torch-pruning.jsonl", subset=5_000, passes=12, lr=0.1
    )
    runs = beside_torch_pruning.records(options)
    assert beside_torch_pruning.markdown(runs) in PERFORMANCE
    assert past_tables.one_pass_table() in PERFORMANCE


def test_a_trial_counts_only_runs_of_its_own_setting() -> None:
    file = FOLDER / "beside-torch-pruning.jsonl"
    assert (
        beside_torch_pruning.records(Namespace(jsonl=file, subset=5_000, passes=20, lr=0.1)) == []
    )
    assert beside_torch_pruning.records(Namespace(jsonl=file.with_name("none"))) == []


MODULES = sorted((ROOT / "studies").glob("*.py"))


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.stem)
def test_every_module_is_shared_code_or_says_how_it_is_run(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    if "__main__" in text:
        assert f"python -m studies.{file.stem}" in text.split('"""')[1]
