"""The study on transformers: its page, its tables, its grid, and that no run is made twice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from studies.on_transformers import RECORDS, Study, read
from studies.transformer_tables import (
    AMOUNTS,
    COMPARED,
    GRID,
    OURS,
    SEEDS,
    SHORT,
    TUNING,
    filled,
    judged,
    next_rate,
    tables,
)
from studies.transformer_tasks import CONTEXT, Sizes, Task, Text, help_topics

PAGE = Path(__file__).parents[2] / "docs" / "transformers.md"


def of(method: str, amount: float | str, seed: int, value: float, **changes: Any) -> dict[str, Any]:
    return {
        "task": "text",
        "method": method,
        "amount": amount,
        "lr": 0.004,
        "seed": seed,
        "settings": {"mask_every": 1} if method == "gmp" else {},
        "validation": value,
        "test": None if seed == TUNING else value,
        "dense_steps": 1500,
        "dense_test": 3.0,
        "dense_curve": [9.0, 2.5, 2.25, 2.0],
        "processor": "A",
        "torch": "2.13.0",
        "finished": "2026-01-02T03:04:05+00:00",
        "cpu_seconds": 360.0,
        **changes,
    }


def test_the_page_has_what_the_committed_records_say() -> None:
    page, found = PAGE.read_text(encoding="utf-8"), tables(read(RECORDS))
    assert page.count("<!-- end -->") == len(found)
    assert all(f"<!-- {place} -->" in page for place in found)
    assert filled(page, found) == page
    assert all("± " in found[f"{task}-results"] for task in ("text", "images"))


def test_every_committed_run_has_its_sparsity_and_none_is_there_twice() -> None:
    records = read(RECORDS)
    shares = {amount: 0.5 if amount == "2:4" else 1 - float(amount) for amount in AMOUNTS}
    for record in records:
        if "kept" in record:
            assert record["kept"] == round(shares[record["amount"]] * record["of"])
    decisive = ("task", "method", "amount", "lr", "seed")
    keys = [(*(r[name] for name in decisive), str(r["settings"])) for r in records]
    assert len({*keys}) == len(keys)
    assert all(r["test"] is None for r in records if r["seed"] == TUNING)
    assert {r["lr"] for r in records} <= {*GRID}


def test_tables_from_runs_whose_numbers_are_known() -> None:
    runs = [of(OURS, 0.9, TUNING, 2.0), of(OURS, 0.9, TUNING, 1.5, lr=0.008)]
    runs += [of(OURS, 0.9, TUNING, 1.25, lr=0.008, settings={"kappa": 10.0})]
    runs += [of(OURS, 0.9, seed, 1.5 + seed / 10, lr=0.008) for seed in SEEDS]
    runs += [of(OURS, 0.9, 0, 1.7, lr=0.008, settings=dict(SHORT))]
    runs += [of(OURS, 0.9, TUNING, 1.9, lr=0.008, settings=dict(SHORT))]
    runs += [of(OURS, 0.9, 0, 1.0)]  # not at the best rate
    runs += [of("gmp", 0.9, TUNING, 2.0), of("gmp", 0.9, TUNING, 2.5, settings={})]
    runs += [of("gmp", 0.8, TUNING, 3.0)]
    runs += [of("gmp", 0.9, seed, 1.75 + seed / 5) for seed in SEEDS]
    found = tables(runs)
    lines = found["text-results"].splitlines()
    assert lines[0] == "| test loss, nats a byte (seeds) | 50 % | 80 % | 90 % | 2:4 |"
    assert lines[2] == "| `bip-plus` | - | - | 1.600 ± 0.100 (3) | - |"
    assert lines[3] == "| `bip-plus`, kappa 1, ramp 0.3 | - | - | 1.700 (1) | - |"
    assert lines[4] == "| `gmp`, mask every 1 | - | - | 1.950 ± 0.200 (3) | - |"
    # Differences of 0.25, 0.35, 0.45: 0.35 ± 0.1 / sqrt(3), and 4.303 times that.
    gap = "| - | - | +0.350 ± 0.058 [+0.102, +0.598] ahead | - |"
    between = "| `bip-plus` ahead of `gmp`, mask every 1 "
    assert found["text-differences"].splitlines()[2] == between + gap
    rates = found["text-rates"].splitlines()
    assert rates[0] == "| validation loss, nats a byte, by rate | 0.004 | 0.008 |"
    assert rates[2:4] == [
        "| `bip-plus` | 2.000 | **1.500** |",
        "| `bip-plus`, kappa 1, ramp 0.3 |  | **1.900** |",
    ]
    assert rates[4] == "| `gmp`, mask every 1 | **2.000** |  |"
    settings = found["settings"].splitlines()
    assert settings[2] == "| `bip-plus` | 1.500 |  |  |  |"
    assert settings[4] == "| `bip-plus`, kappa 10 | 1.250 |  |  |  |"
    assert settings[7:9] == [
        "| `gmp`, mask every 1 | 2.000 | 3.000 |  |  |",
        "| `gmp` | 2.500 |  |  |  |",
    ]
    assert "after 80 % of 1,500 steps 2.500 ± 0.000 (3), at the end 2.000" in found["text-dense"]
    assert (
        found["made"] == "A, one thread; torch 2.13.0; 2026-01-02; 15 runs, 1.5 hours of one core."
    )


def test_of_accuracies_more_is_better() -> None:
    runs = []
    for method, value in ((OURS, 50.0), ("gmp", 40.0)):
        runs += [of(method, 0.8, seed, value + seed, task="images") for seed in SEEDS]
        runs += [of(method, 0.9, TUNING, value, task="images")]
        runs += [of(method, 0.9, TUNING, value + 1, task="images", lr=0.002)]
        runs += [of(method, 0.8, seed, value, task="images", lr=0.002) for seed in SEEDS]
    found = tables(runs)
    assert (
        found["images-results"].splitlines()[2] == "| `bip-plus` | - | 50.00 ± 0.00 (3) | - | - |"
    )
    assert "+10.00 ± 0.00 [+10.00, +10.00] ahead" in found["images-differences"]


@pytest.mark.parametrize(
    ("gaps", "verdict"), [([2.0, 1.0, 3.0], "ahead"), ([-2.0, -1.0], "behind"), ([1, -1], "level")]
)
def test_a_verdict_asks_for_more_than_the_standard_error(gaps: list[float], verdict: str) -> None:
    assert judged(gaps, 2).split()[-1] == verdict


def test_the_grid_is_walked_until_the_best_rate_lies_between_worse_ones() -> None:
    def walk(worth: dict[float, float]) -> list[float]:
        tried: dict[float, float] = {}
        while (lr := next_rate(tried, (4e-3, 8e-3))) is not None:
            tried[lr] = worth.get(lr, -math.inf)
        return list(tried)

    assert walk({4e-3: 1.0, 8e-3: 2.0}) == [4e-3, 8e-3, 16e-3]
    assert walk({4e-3: 2.0, 8e-3: 1.0, 2e-3: 3.0}) == [4e-3, 8e-3, 2e-3, 1e-3]
    assert walk({lr: lr for lr in GRID}) == [4e-3, 8e-3, 16e-3, 32e-3]  # the grid ends there


def test_texts_are_split_by_file() -> None:
    text = Text([bytes([65 + n]) * 3 for n in range(12)], parts=10)
    assert text.splits["test"] == b"CCC\n\n"
    assert text.splits["validation"] == b"FFF\n\n"
    assert len(text.splits["train"]) == 50
    other = Text([bytes([65 + n]) * 3 for n in range(11)] + [b"MMM"], parts=10)
    assert text.digest != other.digest


def test_no_paragraph_of_the_help_is_in_two_splits() -> None:
    splits = help_topics().splits.values()
    texts = [s.decode().split("\n\n") for s in splits]
    parts = [{" ".join(p.split()) for p in text if p.strip()} for text in texts]
    assert all(parts)
    assert len(set.union(*parts)) == sum(map(len, parts))


def test_a_loss_is_measured_by_window() -> None:
    text = Text([bytes(range(200)) * 5] * 6, parts=6)

    class Same(torch.nn.Module):
        """Every byte is as likely as any other."""

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            assert inputs.shape[1] == CONTEXT
            return torch.zeros(*inputs.shape, 256)

    assert text.measure(Same(), "test") == pytest.approx(math.log(256))


def test_no_run_is_made_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = Text([b"one line of text, and another line of it. " * 9] * 10, parts=10)
    sizes = Sizes(8, 1, 2, 2, dense_steps=10, dense_lr=1e-3, steps=4, autocast=False)
    task = Task("text", sizes, text, text)
    path = tmp_path / "records.jsonl"
    for _ in range(2):
        study = Study(path, tmp_path / "store")
        for row in COMPARED:
            study.run(task, row, 0.5, 1e-3, TUNING)
        study.run(task, (OURS, {}), "2:4", 1e-3, 0)
    records = read(path)
    assert len(records) == 6
    assert {record["kept"] / record["of"] for record in records} == {0.5}
    assert all(0 < record["validation"] < 10 for record in records)
    assert [record["test"] is None for record in records] == [True] * 5 + [False]
    assert "bip-plus 2:4" in capsys.readouterr().out
