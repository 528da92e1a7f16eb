"""The examples that need no extra library run, on less of everything, and say what they should.

Those of other libraries' trainers are run beside the tests of the integrations.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "own_loop": (
        {"epochs": 1},
        r"1882 weights are left: .* %\nFine-tuned, 1882 of them not zero: .* %",
    ),
    "transformer": (
        {"steps": 20},
        r"step  20: sparsity 0\.800, loss \d.*\n78643 of 393216 weights in the blocks are left",
    ),
    "two_level_objectives": (
        {"seeds": 1, "steps": 20, "dense_epochs": 1},
        r"plain( +\d+\.\d ± 0\.0){4}\n(.*\n){5}40 % of labels wrong: clean data for the mask",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_example_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / f"{name}.py"
    text = path.read_text(encoding="utf-8")
    assert f"    python examples/{name}.py\n" in text
    assert len(text.splitlines()) < 80
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    less, expected = CASES[name]
    example.main(**less)
    said = capsys.readouterr().out
    assert re.search(expected, said), said


def test_all_examples_that_need_no_extra_are_tried() -> None:
    found = EXAMPLES.glob("*.py")
    assert {path.stem for path in found if "biprune[" not in path.read_text()} == CASES.keys()
