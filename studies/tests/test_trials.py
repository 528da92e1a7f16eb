"""Numbers that were not made by a study: their files, and the tables of the documents."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from studies import beside_torch_pruning, dead_rows, methods_on_digits, one_pass, trials
from studies.archive import FOLDER

ROOT = Path(__file__).parents[2]
METHODS = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
LONGER = ["--passes", "40"]


def stored(name: str) -> list[dict[str, Any]]:
    return json.loads((FOLDER / name).read_text(encoding="utf-8"))["rows"]


def test_a_trial_counts_only_runs_of_its_own_setting(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    always = ["--root", "data", "--jsonl", str(file)]
    usual, longer = (trials.parser("", subset=9).parse_args([*always, *o]) for o in ([], LONGER))
    for number, options in enumerate((usual, longer, usual)):
        trials.add(options, {"run": number})
    assert [record["run"] for record in trials.records(usual)] == [0, 2]
    assert [record["run"] for record in trials.records(longer)] == [1]


def test_the_table_of_dead_rows_is_that_of_its_records() -> None:
    assert dead_rows.markdown(stored("dead-rows.json")) in METHODS


def test_the_table_of_the_digits_is_that_of_its_records() -> None:
    assert methods_on_digits.markdown(stored("digits-95.json"), 5) in METHODS


@pytest.mark.parametrize(
    ("file", "trial"),
    [("one-pass.jsonl", one_pass), ("beside-torch-pruning.jsonl", beside_torch_pruning)],
)
def test_the_tables_of_trials_are_those_of_their_records(file: str, trial: ModuleType) -> None:
    lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
    assert trial.markdown([json.loads(line) for line in lines]) in PERFORMANCE


MODULES = sorted((ROOT / "studies").glob("*.py"))


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.stem)
def test_every_module_is_shared_code_or_says_how_it_is_run(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    if "__main__" in text:
        assert f"python -m studies.{file.stem}" in text.split('"""')[1]
