"""Each benchmark's command, at its smallest size: the rows it writes, not how long they took."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import timing

FOLDER = Path(__file__).parents[1] / "benchmarks"
SMALL = {
    "step_cost": ["--models=resnet8", "--batch=4", "--rounds=1", "--width=64"],
    "freed_memory": ["--models", "resnet8", "--batch", "4", "--rounds", "1"],
    "step_parts": ["--model", "resnet8", "--batch", "4", "--rounds", "1"],
    "memory": ["--models", "resnet20", "--batches", "2"],
    "selection": ["--sizes", "0.27 M", "--rounds", "1"],
    "pipeline": ["--batch", "8", "--rounds", "1"],
    "streams": ["--width=24", "--layers=1", "--length=5", "--rounds=1"],
    "latency": ["--model=resnet8", "--width=4", "--batches=1", "--sparsities=0.5", "--rounds=1"],
}


def rows(name: str, folder: Path) -> list[dict]:
    file = folder / "rows.json"
    command = [sys.executable, FOLDER / f"{name}.py", *SMALL[name], "--threads", "1"]
    done = subprocess.run([*command, "--json", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    content = json.loads(file.read_text(encoding="utf-8"))
    assert {"settings", "processor", "torch", "finished", "threads"} <= content.keys()
    assert all(key in done.stdout for key in content["rows"][0])
    return content["rows"]


@pytest.mark.parametrize(
    "name", ["step_cost", "step_parts", "freed_memory", "pipeline", "latency", "streams"]
)
def test_timings(name: str, tmp_path: Path) -> None:
    for row in rows(name, tmp_path):
        assert all(value > 0 for value in row.values() if isinstance(value, float))


def test_the_selection_takes_less_than_a_copy_of_the_scores(tmp_path: Path) -> None:
    (row,) = rows("selection", tmp_path)
    assert 0.25 <= row["copies"] <= 1.0


def test_memory_beyond_dense_training(tmp_path: Path) -> None:
    """theta, scores, momentum and mask are 13 bytes a weight; a step may take five more."""
    (row,) = rows("memory", tmp_path)
    assert 13 <= row["bip"] <= 18
    assert 9 <= row["bip-plus"] <= 18
    assert 9 <= row["attach"] <= 14
    assert 1 <= row["hold"] <= 2


def test_a_ratio_is_to_the_base_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    takes = {"base": iter([9.0, 1.0, 3.0, 5.0]), "other": iter([9.0, 5.0, 6.0])}  # first: warm-up

    def run(name: str) -> None:
        nonlocal now
        now += next(takes[name])

    monkeypatch.setattr("timing.time.perf_counter", lambda: now)
    candidates = {name: partial(run, name) for name in takes}
    seconds, ratios = timing.bracketed(candidates, "base", rounds=2)
    assert seconds == 2.0  # of 1 and 3
    assert ratios == {"other": 2.0}  # of 5 / 2 and 6 / 4


@pytest.mark.parametrize("script", sorted(path.stem for path in FOLDER.glob("*.py")))
def test_every_script_is_shared_code_or_says_how_it_is_run(script: str) -> None:
    text = (FOLDER / f"{script}.py").read_text(encoding="utf-8")
    if "__main__" in text:
        assert f"python benchmarks/{script}.py" in text.split('"""')[1]
