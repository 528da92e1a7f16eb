"""The zoo: its page is that of its records, and what fails in a process is a record as well."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import zoo
from zoo_models import zoo as architectures
from zoo_page import filled, passes, places
from zoo_stages import STAGES

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs/results/zoo.jsonl"
LIMITS = argparse.Namespace(seconds=60, peer_seconds=60, gigabytes=12)


def test_the_page_is_that_of_the_records() -> None:
    text = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert filled(text, places(zoo.records(RESULTS))) == text


def test_records_are_of_the_zoo_and_in_order() -> None:
    names = [record["model"] for record in zoo.records(RESULTS)]
    assert names == sorted(set(names))
    assert set(names) <= set(architectures())


def test_of_what_was_tried_nearly_all_works() -> None:
    records = zoo.records(RESULTS)
    through = [r for r in records if all(passes(r, stage) for stage in STAGES)]
    assert len(through) >= 0.95 * len(records)


def small() -> tuple[nn.Module, Tensor]:
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)]
    return nn.Sequential(*layers), torch.randn(4, 3, 8, 8)


class Sorted(nn.Module):
    """No unit can go: what is sorted depends on all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).sort().values)


def endless() -> tuple[nn.Module, Tensor]:
    while True:
        pass


def asleep() -> tuple[nn.Module, Tensor]:
    time.sleep(60)
    return small()


def large() -> tuple[nn.Module, Tensor]:
    return nn.Linear(1 << 20, 1 << 16), torch.zeros(4, 1 << 20)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    def run(build: Callable[[], object], **limits: float) -> dict:
        monkeypatch.setattr(zoo, "zoo", lambda: {"own": build})
        return zoo.in_process("own", "ours", argparse.Namespace(**{**vars(LIMITS), **limits}))

    return run


def test_a_model_goes_through_all_stages(in_process: Callable[..., dict]) -> None:
    record = in_process(small)
    assert record["parameters"] == 3 * 8 * 9 + 8 + 16 + 288 * 4 + 4
    assert all(passes(record, stage) for stage in STAGES), record
    assert record["weights"]["pruned"] == round(0.9 * (216 + 1152))
    assert record["groups"]["units"] == 8
    assert record["certified"]["macs"] == 0.5
    assert record["certified"]["difference"] < 1e-12


def test_what_fails_is_recorded_with_the_reason(in_process: Callable[..., dict]) -> None:
    record = in_process(lambda: (Sorted(), torch.randn(4, 6)))
    assert passes(record, "weights")
    assert "sort is over all of it" in record["groups"]["error"]
    assert not {"certified", "files", "onnx"} & record.keys()


def test_time_and_memory_have_an_end(
    in_process: Callable[..., dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert in_process(endless, seconds=1)["weights"]["error"] == "time limit 1 s"
    monkeypatch.setattr(zoo, "PATIENCE", 1)
    assert in_process(asleep, seconds=1)["weights"]["error"] == "time limit 1 s"
    assert "ended with code 1" in in_process(large)["weights"]["error"]


def test_a_record_replaces_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "zoo.jsonl"
    for model, count in (("b", 1), ("a", 2), ("b", 3)):
        zoo.add(file, {"model": model, "parameters": count})
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert lines == [{"model": "a", "parameters": 2}, {"model": "b", "parameters": 3}]
