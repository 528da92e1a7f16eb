"""Sizes against files and counts by hand, turns against a clock, verdicts on known figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from biprune.files.artifact import pack
from biprune.runtime.measured import Footprint, Latency, Profile, Row, footprint, interleaved, ratio
from biprune.runtime.onnx import export_onnx
from biprune.runtime.sparse import with_csr
from perceptron import BIASES, INPUTS, WEIGHTS, Clock, masks_of, perceptron


def test_sizes_of_a_dense_model(tmp_path: Path) -> None:
    model = perceptron()
    save_file(model.state_dict(), tmp_path / "state")
    expected = Footprint(
        parameters=WEIGHTS + BIASES,
        nonzero=WEIGHTS + BIASES,
        macs=WEIGHTS,
        bytes=(tmp_path / "state").stat().st_size,
    )
    assert footprint(model, INPUTS) == expected


def test_a_masked_model_does_the_same_work_in_a_smaller_file(tmp_path: Path) -> None:
    model = perceptron(zeros=0.9)
    kept = masks_of(model)
    save_file(pack(model.state_dict(), kept), tmp_path / "ticket")
    size = footprint(model, INPUTS)
    assert size.nonzero == sum(int(mask.sum()) for mask in kept.values()) + BIASES
    assert (size.parameters, size.macs) == (WEIGHTS + BIASES, WEIGHTS)
    assert size.bytes == (tmp_path / "ticket").stat().st_size
    assert size.bytes < footprint(perceptron(), INPUTS).bytes / 3


def test_tied_parameters_count_once() -> None:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    size = footprint(model, torch.zeros(1, 4))
    assert (size.parameters, size.nonzero, size.macs) == (16, 16, 32)


def test_sizes_of_an_onnx_file(tmp_path: Path) -> None:
    model = perceptron(zeros=0.9)
    check = export_onnx(model, tmp_path / "model.onnx", INPUTS)
    expected = footprint(model, INPUTS)
    size = footprint(check.path, INPUTS)
    assert size == replace(expected, macs=None, bytes=check.path.stat().st_size)


def test_sizes_of_sparse_rows() -> None:
    model = perceptron(zeros=0.9)
    found = with_csr(model)
    assert found is not None
    size, masked = footprint(found, INPUTS), footprint(model, INPUTS)
    assert (size.parameters, size.nonzero, size.macs) == (WEIGHTS + BIASES, masked.nonzero, None)
    held = 8 * (masked.nonzero - BIASES) + 4 * (33 + 11) + 4 * BIASES  # values, columns, starts
    assert held < size.bytes < held + 1000


def test_candidates_take_turns() -> None:
    order: list[str] = []
    candidates: dict[str, Callable[[], object]] = {
        name: (lambda name=name: order.append(name)) for name in "abc"
    }
    seconds = interleaved(candidates, rounds=4, warm_up=2)
    assert {name: len(each) for name, each in seconds.items()} == {"a": 4, "b": 4, "c": 4}
    rounds = ["".join(order[i : i + 3]) for i in range(0, 18, 3)]
    assert all(sorted(each) == ["a", "b", "c"] for each in rounds)
    assert [each[0] for each in rounds[2:]] == ["a", "b", "c", "a"]


def test_what_the_one_before_left_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call behind another candidate's takes twice as long, as after a change of runtime."""
    clock, last = Clock(), [""]
    monkeypatch.setattr("biprune.runtime.measured.time.perf_counter", lambda: clock.now)

    def call(name: str) -> None:
        clock.now += 1.0 if last[0] == name else 2.0
        last[0] = name

    candidates = {name: partial(call, name) for name in "abc"}
    assert set(interleaved(candidates, rounds=4)["b"]) == {2.0}
    started = clock.now
    seconds = interleaved(candidates, rounds=4, warm_up=0, lead_in=2.5)
    assert seconds == {name: [1.0] * 4 for name in "abc"}
    assert clock.now - started == 4 * 3 * (2.0 + 1.0 + 1.0)  # 2.5 s are over after two calls


def test_the_ratio_is_taken_within_rounds() -> None:
    seconds = {"base": [1.0, 10.0, 1.0], "own": [2.0, 20.0, 2.2]}
    assert ratio(seconds, "own", "base") == pytest.approx(2.0)


def row(name: str, nonzero: int, macs: int | None, *speedups: float) -> Row:
    latency = {b: Latency(1 / s, 2 / s, s) for b, s in zip((1, 64), speedups, strict=True)}
    runtime = "onnxruntime" if macs is None else "torch"
    return Row(name, runtime, Footprint(100, nonzero, macs, 400), latency)


def verdict(*rows: Row) -> str:
    return Profile([*rows], threads=1, rounds=9).verdict


DENSE = row("dense", 100, 50, 1.0, 1.0)
MASKED = row("masked", 10, 50, 0.98, 1.02)
ZEROS_GAIN_NOTHING = (
    "Masked weights are zeros in dense tensors: no kernel here skips them, and masked is 0.98 "
    "times as fast as dense at batch 1, 1.02 times at batch 64."
)


def test_the_verdict_says_plainly_that_zeros_gain_nothing() -> None:
    assert verdict(DENSE, MASKED) == ZEROS_GAIN_NOTHING
    slower = row("csr", 10, 45, 0.5, 0.7)
    assert verdict(DENSE, MASKED, slower) == (
        f"{ZEROS_GAIN_NOTHING} There is no speed-up worth the name: csr is 0.50 times as fast as "
        "dense at batch 1, 0.70 times at batch 64."
    )


def test_the_verdict_names_the_fastest() -> None:
    small, slower = row("small", 10, 5, 2.0, 3.0), row("csr", 10, 45, 2.4, 1.2)
    assert verdict(DENSE, MASKED, slower, small) == (
        f"{ZEROS_GAIN_NOTHING} The variant small is 2.00 times as fast as dense at batch 1, 3.00 "
        "times at batch 64."
    )


def test_what_the_runtime_gains_is_not_taken_for_the_prunings() -> None:
    dense, small = row("onnx dense", 100, None, 4.0, 2.0), row("onnx small", 10, None, 6.0, 2.2)
    assert verdict(DENSE, dense, small) == (
        "Without any pruning onnxruntime is 4.00 times as fast as dense at batch 1, 2.00 times at "
        "batch 64; there onnx small is 1.50 times as fast as onnx dense at batch 1, 1.10 times at "
        "batch 64."
    )
    assert verdict(DENSE, small) == (
        "The variant onnx small is 6.00 times as fast as dense at batch 1, 2.20 times at batch 64."
    )


def test_zeros_that_do_gain_something_are_not_denied() -> None:
    assert verdict(DENSE, row("masked", 10, 50, 1.0, 1.5)) == (
        "The zeros of masked are in dense tensors, and it is 1.00 times as fast as dense at batch "
        "1, 1.50 times at batch 64."
    )


def test_no_cause_is_given_beside_a_contrary_number() -> None:
    masked, small = row("masked", 10, 50, 1.24, 0.9), row("small", 10, 5, 0.8, 1.2)
    assert verdict(DENSE, masked, small) == (
        "The zeros of masked are in dense tensors, and it is 1.24 times as fast as dense at batch "
        "1, 0.90 times at batch 64. The variant small is 0.80 times as fast as dense at batch 1, "
        "1.20 times at batch 64."
    )


def test_one_variant_has_nothing_to_be_compared_with() -> None:
    assert verdict(DENSE) == ("dense alone was measured, so there is nothing to compare it with.")
