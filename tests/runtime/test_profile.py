"""Latency against candidates whose times are known, and the variants of a ticket."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from biprune.core.masks import Masks
from biprune.core.structure import get_structure
from biprune.runtime import profile as profile_module
from biprune.runtime.measured import footprint
from biprune.runtime.profile import filled, profile, ticket_variants
from perceptron import INPUTS, WEIGHTS, Clock, masks_of, perceptron


class Waiting(nn.Module):
    """Takes so many milliseconds of a clock, eval mode or not."""

    def __init__(self, clock: Clock, milliseconds: float) -> None:
        super().__init__()
        self.clock, self.seconds = clock, milliseconds / 1000
        self.layer = nn.Linear(2, 2)
        self.seen: list[tuple[int, bool, bool, int]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        inference = torch.is_inference_mode_enabled()
        self.seen.append((len(inputs), self.training, inference, torch.get_num_threads()))
        self.clock.now += self.seconds
        return self.layer(inputs)


def test_latency_of_known_times(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("biprune.runtime.measured.time.perf_counter", lambda: clock.now)
    slow, fast = Waiting(clock, 20), Waiting(clock, 5)
    before = torch.get_num_threads()
    result = profile(
        {"slow": slow, "fast": fast}, torch.zeros(1, 2), batches=(1, 3), rounds=5, threads=2
    )
    assert torch.get_num_threads() == before
    assert (result.threads, result.rounds) == (2, 5)
    assert [row.name for row in result.rows] == ["slow", "fast"]
    for row, expected in zip(result.rows, (20, 5), strict=True):
        assert list(row.latency) == [1, 3]
        for each in row.latency.values():
            assert (each.median, each.p90) == pytest.approx((expected, expected))
    assert result.rows[0].latency[1].speedup == 1.0
    assert result.rows[1].latency[3].speedup == pytest.approx(4.0)
    # Three to warm up and five rounds at each size, in eval and inference mode, each of one call
    # that is not timed and one that is; one more counts macs.
    timed = [(1, False, True, 2)] * 16 + [(3, False, True, 2)] * 16
    assert fast.seen[:32] == timed
    assert [size for size, *_ in fast.seen[32:]] == [1]
    assert fast.training


def test_variants_of_an_unstructured_ticket(tmp_path: Path) -> None:
    model = perceptron(zeros=0.9)
    masks = masks_of(model)
    variants, notes = ticket_variants(model, masks, None, INPUTS, tmp_path)
    assert list(variants) == ["dense", "masked", "csr", "onnx dense", "onnx masked"]
    assert variants["masked"] is model
    assert variants["onnx masked"] == tmp_path / "masked.onnx"
    assert len(notes) == 1
    assert "convolutions" in notes[0]
    result = profile(variants, INPUTS, batches=[1, 4], rounds=2)
    assert [each.name for each in result.rows] == list(variants)
    assert all(0 < t.median <= t.p90 for each in result.rows for t in each.latency.values())
    assert "zeros" in result.verdict


def test_variants_with_a_small_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(model: nn.Module, path: Path, example_input: Tensor) -> SimpleNamespace:
        exported.append(model)
        return SimpleNamespace(path=path)

    exported: list[nn.Module] = []
    monkeypatch.setattr(profile_module, "export_onnx", written)
    model, small = perceptron(zeros=0.9), perceptron()
    masks = Masks(masks_of(model), get_structure("filter"))
    variants, notes = ticket_variants(model, masks, small, INPUTS, tmp_path)
    assert list(variants) == ["dense", "masked", "small", "onnx dense", "onnx small"]
    assert variants["small"] is small
    assert exported == [variants["dense"], small]
    assert variants["onnx small"] == tmp_path / "small.onnx"
    assert notes == []


def test_variants_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_module, "has_onnx", lambda: False)
    model = perceptron(zeros=0.5)
    variants, notes = ticket_variants(model, masks_of(model), None, INPUTS, tmp_path)
    assert list(variants) == ["dense", "masked", "csr"]
    assert notes[-1] == "onnxruntime is not measured: pip install 'biprune[onnx]'"


class ByItsLayers(nn.Module):
    """A forward that looks at its layers; `whole` looks at what sparse rows do not have."""

    def __init__(self, *, whole: bool) -> None:
        super().__init__()
        self.fc, self.whole = perceptron(zeros=0.9)[1], whole

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x.reshape(-1, self.fc.in_features))
        return x + self.fc.weight.flatten().sum() if self.whole else x


@pytest.mark.parametrize("whole", [False, True])
def test_sparse_rows_are_left_out_where_the_model_does_not_run_with_them(
    tmp_path: Path, whole: bool
) -> None:
    model = ByItsLayers(whole=whole).eval()
    variants, notes = ticket_variants(model, masks_of(model), None, INPUTS, tmp_path)
    assert ("csr" in variants) is not whole
    assert notes[0].startswith("csr: the model does not run") is whole


def test_a_model_that_cannot_be_exported_is_measured_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise ValueError("The model cannot be exported to ONNX: it jumps about.")

    monkeypatch.setattr(profile_module, "export_onnx", refused)
    model = nn.Linear(64, 2)
    variants, notes = ticket_variants(model, masks_of(model), None, INPUTS, tmp_path)
    assert list(variants) == ["dense", "masked"]
    assert notes == [
        f"onnx {name}: The model cannot be exported to ONNX: it jumps about."
        for name in ("dense", "masked")
    ]


def test_the_dense_variant_has_no_zeros_and_keeps_the_rest() -> None:
    model = perceptron(zeros=0.9)
    masks, drawn = masks_of(model), torch.get_rng_state()
    dense = filled(model, masks)
    for name, parameter in dense.named_parameters():
        assert torch.count_nonzero(parameter) == parameter.numel()
        kept = masks.get(name, torch.ones_like(parameter, dtype=torch.bool))
        assert torch.equal(parameter[kept], model.get_parameter(name)[kept])
        if not kept.all():
            kept_spread, filled_spread = (parameter[m].std().item() for m in (kept, ~kept))
            assert filled_spread == pytest.approx(kept_spread, rel=0.15)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert footprint(model, INPUTS).nonzero < WEIGHTS  # the masked one is untouched


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rounds": 0}, "`rounds` must be at least 1, got 0"),
        ({"batches": [1, 0]}, "`batches` must be at least 1, got 0"),
        ({"batches": []}, "must not be empty"),
        ({"threads": 0}, "`threads` must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        profile({"dense": nn.Linear(2, 2)}, torch.zeros(1, 2), **arguments)


def test_threads_and_modes_are_put_back_after_a_failure() -> None:
    before, model = torch.get_num_threads(), nn.Linear(2, 2)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        profile({"dense": model}, torch.zeros(1, 3), rounds=1, threads=before + 1)
    assert torch.get_num_threads() == before
    assert model.training
