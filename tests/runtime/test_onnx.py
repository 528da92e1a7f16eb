"""ONNX files against PyTorch, run by onnxruntime apart from the library's own check."""

from __future__ import annotations

import copy
import getpass
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from biprune.runtime import onnx as onnx_module
from biprune.runtime.onnx import OnnxCheck, OnnxModel, export_onnx

SHAPE = (3, 8, 8)


def network(zeros: float = 0.0) -> nn.Module:
    """Convolutions in training mode whose norm has seen data, some of the weights zero."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 40, 3, bias=False), nn.BatchNorm2d(40)
    model = nn.Sequential(conv, norm, nn.ReLU(), nn.Flatten(), nn.Linear(40 * 36, 10))
    model(torch.randn(16, *SHAPE))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter[torch.rand_like(parameter) < zeros] = 0.0
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, OnnxCheck]:
    model = network(zeros=0.9)
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    return model, export_onnx(model, path, torch.zeros(1, *SHAPE))


def messages(proto: object) -> Iterator[object]:
    """A protobuf message and all that it holds."""
    yield proto
    for field, value in proto.ListFields():  # pyright: ignore[reportAttributeAccessIssue]
        if field.message_type is not None:
            for part in [value] if hasattr(value, "ListFields") else value:
                yield from messages(part)


@pytest.mark.parametrize("batch", [1, 5])
def test_onnxruntime_gives_what_pytorch_gives(
    exported: tuple[nn.Module, OnnxCheck], batch: int
) -> None:
    model, check = exported
    images = torch.randn(batch, *SHAPE)
    session = onnxruntime.InferenceSession(str(check.path))
    (output,) = session.run(["output"], {"input": images.numpy()})
    expected = copy.deepcopy(model).eval()(images).detach()
    torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-4, atol=1e-5)
    assert 0 < check.error < 1e-5
    assert check.tolerance == 1e-4
    assert check.batches == (1, 2, 7)
    assert session.get_inputs()[0].shape == ["batch", *SHAPE]


def test_one_file_no_larger_than_its_weights_and_graph(
    exported: tuple[nn.Module, OnnxCheck], tmp_path: Path
) -> None:
    model, check = exported
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    assert [path.name for path in check.path.parent.iterdir()] == ["model.onnx"]
    assert check.bytes == check.path.stat().st_size
    assert weights < check.bytes < weights + 10_000
    dense = export_onnx(network(), tmp_path / "dense.onnx", torch.zeros(2, *SHAPE))
    assert dense.bytes == check.bytes


def test_it_says_nothing_of_the_machine(exported: tuple[nn.Module, OnnxCheck]) -> None:
    content = exported[1].path.read_bytes()
    repository = Path(__file__).parents[2]
    places = [repository, Path.home(), sys.prefix, "site-packages", ".py", "forward", "biprune"]
    for place in [*map(str, places), "stack_trace", getpass.getuser() + "/"]:
        assert place.encode() not in content, place
    proto = onnx.load(exported[1].path)
    for message in messages(proto):
        assert not getattr(message, "metadata_props", ())
        assert not getattr(message, "doc_string", "")
    assert not any(tensor.external_data for tensor in proto.graph.initializer)


def test_the_model_is_as_before_and_nothing_is_printed(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    same_state: Callable[[nn.Module, nn.Module], bool],
) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    model[1].eval()
    model[0].weight.requires_grad = False
    twin, drawn = copy.deepcopy(model), torch.get_rng_state()
    export_onnx(model, tmp_path / "model.onnx", torch.zeros(3, 4))
    assert same_state(model, twin)
    assert [m.training for m in model.modules()] == [m.training for m in twin.modules()]
    assert [p.requires_grad for p in model.parameters()] == [False, *[True] * 5]
    assert torch.equal(torch.get_rng_state(), drawn)
    assert capfd.readouterr() == ("", "")


def test_encoder_layers(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    check = export_onnx(layer, tmp_path / "model.onnx", torch.zeros(1, 5, 8))
    tokens = torch.randn(4, 5, 8)
    (output,) = OnnxModel(check.path)(tokens)
    torch.testing.assert_close(output, layer.eval()(tokens).detach(), rtol=1e-4, atol=1e-5)


class TwoInTwoOut(nn.Module):
    """Looks tokens up and mixes them by a matrix that has no samples."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def forward(self, tokens: Tensor, mixing: Tensor) -> dict[str, Tensor]:
        found = self.table(tokens)
        return {"found": found, "mixed": found @ mixing}


class Biased(nn.Module):
    """Attention with a bias for each head, called by the names of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.out, self.bias = nn.Linear(8, 8), nn.Parameter(torch.randn(1, 2, 5, 5))

    def forward(self, *, queries: Tensor, values: Tensor) -> dict[str, Tensor]:
        q, v = (t.view(t.shape[0], 5, 2, 4).transpose(1, 2) for t in (queries, values))
        mixed = functional.scaled_dot_product_attention(q, q, v, attn_mask=self.bias)
        return {"mixed": self.out(mixed.transpose(1, 2).reshape(queries.shape))}


def test_biased_attention_called_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Biased()
    inputs = {"queries": torch.randn(3, 5, 8), "values": torch.randn(3, 5, 8)}
    check = export_onnx(model, tmp_path / "model.onnx", inputs)
    session = onnxruntime.InferenceSession(str(check.path))
    (output,) = session.run(["output"], {name: t.numpy() for name, t in inputs.items()})
    torch.testing.assert_close(torch.from_numpy(output), model(**inputs)["mixed"].detach())


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    model, mixing = TwoInTwoOut(), torch.randn(4, 4)
    tokens = torch.tensor([[1, 9, 3]])
    path = export_onnx(model, tmp_path / "model.onnx", (tokens, mixing)).path
    session = onnxruntime.InferenceSession(str(path))
    assert [(i.name, i.shape) for i in session.get_inputs()] == [
        ("input_0", ["batch", 3]),
        ("input_1", [4, 4]),
    ]
    tokens = torch.tensor([[0, 2, 4], [9, 8, 7]])
    names = ["output_0", "output_1"]
    outputs = session.run(names, {"input_0": tokens.numpy(), "input_1": mixing.numpy()})
    for output, expected in zip(outputs, model(tokens, mixing).values(), strict=True):
        torch.testing.assert_close(torch.from_numpy(output), expected.detach())


class Nest(nn.Module):
    """Returns a layer's output and twice that, nested with other things than tensors."""

    def __init__(self, nest: Callable[[Tensor, Tensor], object]) -> None:
        super().__init__()
        self.linear, self.nest = nn.Linear(3, 2), nest

    def forward(self, inputs: Tensor) -> object:
        made = self.linear(inputs)
        return self.nest(made, 2 * made)


@pytest.mark.parametrize(
    "nest",
    [
        lambda one, two: (one, None, two),
        lambda one, two: {"one": one, "aux": None, "a": two},
        lambda one, two: (one, 3, [two, "text"]),
        lambda one, two: {"z": (one, None), "a": [two]},
    ],
)
def test_of_a_nest_the_file_has_the_tensors(
    nest: Callable[[Tensor, Tensor], object], tmp_path: Path
) -> None:
    model, inputs = Nest(nest), torch.randn(4, 3)
    path = export_onnx(model, tmp_path / "model.onnx", torch.zeros(1, 3)).path
    session = onnxruntime.InferenceSession(str(path))
    assert [each.name for each in session.get_outputs()] == ["output_0", "output_1"]
    one, two = session.run(None, {"input": inputs.numpy()})
    expected = model.linear(inputs).detach()
    torch.testing.assert_close(torch.from_numpy(one), expected)
    torch.testing.assert_close(torch.from_numpy(two), 2 * expected)


def test_a_model_without_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="returns no tensors"):
        export_onnx(Nest(lambda one, two: None), tmp_path / "model.onnx", torch.zeros(1, 3))


class Faint(nn.Module):
    """Small numbers, that a graph has as zeros: what the first call gives is not what others do."""

    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return inputs * (5e-5 if self.calls <= 3 else 0.0)


def test_small_outputs_are_compared_by_their_own_size(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="differ by 1 of the largest"):
        export_onnx(Faint(), tmp_path / "model.onnx", torch.zeros(1, 3))


class Drifting(nn.Module):
    """Answers differently at every call, by what a graph cannot know."""

    calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        return inputs.clamp(-1, 1) * self.calls


def test_a_mismatch_is_refused_with_its_figures_and_replaces_no_file(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_text("the one before")
    figures = r"differ by [\d.]+ .* `tolerance` is 0.0001. Nothing was written"
    with pytest.raises(ValueError, match=figures):
        export_onnx(Drifting(), path, torch.zeros(2, 3))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["the one before"]


class Calling(nn.Module):
    """Returns what a function makes of its input."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


def by_value(inputs: Tensor) -> Tensor:
    return 2 * inputs if float(inputs.sum()) > 0 else inputs


def by_batch(inputs: Tensor) -> Tensor:
    return 2 * inputs if len(inputs) > 4 else inputs


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Calling(by_value), "cannot be exported to ONNX: Could not guard"),
        (Calling(by_batch), "for batches of any size"),
        (Calling(lambda x: x.view(len(x), -1)), r"Use `x\.shape\[0\]` in place of `len\(x\)`"),
        (Calling(lambda x: x * math.nan), "differ by nan"),
        (nn.Linear(4, 2), "does not run on a batch of 1 like `example_input`: mat1 and mat2"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    model: nn.Module, reason: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=reason):
        export_onnx(model, tmp_path / "model.onnx", torch.zeros(2, 3))
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_opset(tmp_path: Path) -> None:
    check = export_onnx(nn.Linear(3, 2), tmp_path / "model.onnx", torch.zeros(1, 3), opset=18)
    assert check.opset == 18
    assert [each.version for each in onnx.load(check.path).opset_import] == [18]


def test_sizes_and_tolerances_that_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, inputs = tmp_path / "model.onnx", torch.zeros(1, 3)
    with pytest.raises(ValueError, match="`tolerance` must be positive, got 0"):
        export_onnx(nn.Linear(3, 2), path, inputs, tolerance=0.0)
    monkeypatch.setattr(onnx_module, "LIMIT", 31)
    with pytest.raises(ValueError, match="at most 2 GB"):
        export_onnx(nn.Linear(3, 2), path, inputs)


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"onnx"}
    monkeypatch.setattr(onnx_module, "find_spec", lambda name: name in installed or None)
    assert not onnx_module.has_onnx()
    with pytest.raises(
        ModuleNotFoundError, match=r"needs onnxscript, onnxruntime, .*'biprune\[onnx\]'"
    ):
        export_onnx(nn.Linear(3, 2), tmp_path / "model.onnx", torch.zeros(1, 3))
