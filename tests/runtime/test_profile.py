"""Sizes against files and counts by hand; latency against candidates whose times are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from biprune.core.masks import Masks
from biprune.core.structure import get_structure
from biprune.files.artifact import pack
from biprune.runtime import profile as profile_module
from biprune.runtime.measured import Footprint, Latency, Profile, Row, footprint, interleaved, ratio
from biprune.runtime.onnx import export_onnx
from biprune.runtime.profile import filled, profile, ticket_variants
from biprune.runtime.sparse import CsrLinear, with_csr


def perceptron(zeros: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).eval()
    with torch.no_grad():
        for layer in (model[1], model[3]):
            layer.weight[torch.rand_like(layer.weight) < zeros] = 0.0
    return model


def masks_of(model: nn.Module) -> Masks:
    weights = {n: p != 0 for n, p in model.named_parameters() if p.ndim > 1}
    return Masks(weights, get_structure("weight"))


INPUTS = torch.zeros(2, 1, 8, 8)
WEIGHTS, BIASES = 64 * 32 + 32 * 10, 42


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


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 12), (5, 12), (2, 3, 12)])
def test_sparse_rows_give_what_the_layer_gives(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(12, 7, bias=bias)
    with torch.no_grad():
        layer.weight[torch.rand_like(layer.weight) < 0.7] = 0.0
    inputs = torch.randn(shape)
    with torch.inference_mode():
        torch.testing.assert_close(CsrLinear(layer)(inputs), layer(inputs))


def test_sparse_rows_replace_linear_layers_with_zeros_and_nothing_else() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    dense, conv, sparse = nn.Linear(8, 8), nn.Conv1d(5, 5, 1), nn.Linear(8, 4)
    model = nn.Sequential(encoder, dense, conv, nn.Sequential(sparse)).eval()
    with torch.no_grad():
        for weight in (sparse.weight, conv.weight, encoder.linear1.weight):
            weight[:, ::2] = 0.0
    found = with_csr(model)
    assert found is not None
    assert [type(module) for module in found] == [*map(type, model[:3]), nn.Sequential]
    assert isinstance(found[3][0], CsrLinear)
    assert isinstance(found[0].linear1, nn.Linear)
    assert isinstance(model[3][0], nn.Linear)
    tokens = torch.randn(3, 5, 8)
    with torch.inference_mode():
        torch.testing.assert_close(found(tokens), model(tokens))
    assert with_csr(nn.Sequential(dense, conv)) is None


def test_sizes_of_sparse_rows() -> None:
    model = perceptron(zeros=0.9)
    found = with_csr(model)
    assert found is not None
    size, masked = footprint(found, INPUTS), footprint(model, INPUTS)
    assert (size.parameters, size.nonzero, size.macs) == (WEIGHTS + BIASES, masked.nonzero, None)
    held = 8 * (masked.nonzero - BIASES) + 4 * (33 + 11) + 4 * BIASES  # values, columns, starts
    assert held < size.bytes < held + 1000


class Clock:
    """Stands still, but for what is put on it."""

    now = 0.0


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
