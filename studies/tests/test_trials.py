"""Numbers that were not made by a study: the tables of the documents are those of their records."""

from __future__ import annotations

from pathlib import Path

import pytest

from studies import beside_torch_pruning, past_tables

ROOT = Path(__file__).parents[2]
METHODS = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
PERFORMANCE = (ROOT / "docs/performance.md").read_text(encoding="utf-8")


def test_the_tables_of_methods_are_those_of_their_records() -> None:
    assert past_tables.dead_rows_table() in METHODS
    assert past_tables.digits_table() in METHODS


def test_the_tables_of_performance_are_those_of_their_records() -> None:
    runs = beside_torch_pruning.records()
    assert beside_torch_pruning.markdown(runs) in PERFORMANCE
    assert past_tables.one_pass_table() in PERFORMANCE


MODULES = sorted((ROOT / "studies").glob("*.py"))


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.stem)
def test_every_module_is_shared_code_or_says_how_it_is_run(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    if "__main__" in text:
        assert f"python -m studies.{file.stem}" in text.split('"""')[1]
