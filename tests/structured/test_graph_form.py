"""Small models that are graphs: they train, keep the user's names, and refuse what they are not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adversarial
import architectures
import biprune
from biprune.core.groups import Group
from biprune.runtime.onnx import export_onnx
from biprune.structured.find import find_groups
from biprune.structured.form import GraphForm
from biprune.structured.removal import zero_
from biprune.structured.shrink import shrink
from biprune.structured.written import from_data, to_data

STEPS = 20


def pruned(model: nn.Module, example: Any, **options: Any) -> tuple[Any, dict[str, Tensor], Any]:
    """A model whose every other unit is zero, in float64, and which units stay."""
    found = find_groups(model, example, **options)
    keep = {group.name: torch.arange(group.size) % 2 == 0 for group in found.groups}
    zero_(model, found.groups, keep)
    return found, keep, model


def hold(model: nn.Module, groups: tuple[Group, ...], keep: dict[str, Tensor]) -> None:
    """Gradients of what is masked are dropped, as in training with a mask."""
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    for group in groups:
        for part in group.slices:
            if part.tensor in gradients:
                gone = ~part.spread(keep[group.name], gradients[part.tensor].shape)
                gradients[part.tensor].masked_fill_(gone, 0.0)


def cut(tensor: Tensor, dims: dict[int, list[int]]) -> Tensor:
    for dim, index in dims.items():
        tensor = tensor.index_select(dim, torch.tensor(index))
    return tensor


CASES: dict[str, tuple[Any, Any]] = {
    "residual": (lambda: architectures.build("residual"), architectures.images(4)),
    "layers": (lambda: adversarial.build("layers"), adversarial.MODULES["layers"][1]),
}


@pytest.mark.parametrize("form", ["module", "graph"])
@pytest.mark.parametrize("name", CASES)
def test_training_on_is_training_the_masked_model(name: str, form: str) -> None:
    build, example = CASES[name]
    found, keep, masked = pruned(build(), example)
    small = shrink(masked, found, example, form=form)  # pyright: ignore[reportArgumentType]
    masked, small = masked.double().train(), small.double().train()
    inputs = example.double() if example.is_floating_point() else example
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.003, momentum=0.9) for m in (masked, small)]
    for _ in range(STEPS):
        for model, optimizer in zip((masked, small), optimizers, strict=True):
            optimizer.zero_grad()
            model(inputs).sin().sum().backward()
            hold(masked, found.groups, keep)
            if model is small:
                compare_gradients(masked, small)
            optimizer.step()
        # The masked model steps first, so both gradients are compared before the second step.
    state = masked.state_dict()
    for name_, tensor in small.state_dict().items():
        if name_ in state and tensor.is_floating_point():
            expected = cut(state[name_], small.certificate.kept.get(name_, {}))
            torch.testing.assert_close(tensor, expected, rtol=0, atol=1e-10)


def compare_gradients(masked: nn.Module, small: nn.Module) -> None:
    gradients = {name: p.grad for name, p in masked.named_parameters()}
    kept = small.certificate.kept  # pyright: ignore[reportAttributeAccessIssue]
    for name, parameter in small.named_parameters():
        expected = cut(gradients[name], kept.get(name, {}))
        assert float((parameter.grad - expected).abs().max()) < 1e-12 * max(
            1.0, float(expected.abs().max())
        )


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.norm(self.conv(x)).relu().mean((2, 3))
        return {"logits": self.head(self.drop(x)), "features": x}


def graph_of(model: nn.Module, example: Any, **options: Any) -> Any:
    found, _, model = pruned(model, example, **options)
    return shrink(model, found, example, form="graph")


def test_batch_norm_and_dropout_switch_with_the_mode() -> None:
    small = graph_of(Modes().eval(), torch.randn(4, 3, 8, 8))
    assert isinstance(small, GraphForm)
    assert not small.training
    x = torch.randn(6, 3, 8, 8)
    assert torch.equal(small(x).logits, small(x)["logits"])
    mean = small.norm.running_mean.clone()
    small.train()
    assert not torch.equal(small(x)["logits"], small(x)["logits"])  # dropout draws
    assert not torch.equal(small.norm.running_mean, mean)
    copied = copy.deepcopy(small)
    assert copied.training
    moved = small.eval().norm.running_mean.clone()
    small(x)
    assert torch.equal(small.norm.running_mean, moved)
    assert copied.training
    assert set(small.state_dict()) == {
        *(f"conv.{n}" for n in ("weight", "bias")),
        *(f"norm.{n}" for n in ("weight", "bias", "running_mean", "running_var")),
        *(f"head.{n}" for n in ("weight", "bias")),
    }


class Behind(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), norm, nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


NORMS = {
    "batch": lambda: nn.BatchNorm2d(8),
    "batch without statistics": lambda: nn.BatchNorm2d(8, track_running_stats=False),
    "instance with statistics": lambda: nn.InstanceNorm2d(8, track_running_stats=True),
}


@pytest.mark.parametrize("name", NORMS)
def test_norms_do_in_both_modes_what_the_model_does(name: str) -> None:
    x = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0)).double()
    found, _, masked = pruned(Behind(NORMS[name]()).double(), x)
    small = shrink(masked, found, x, form="graph")
    state = {key: tensor.clone() for key, tensor in small.state_dict().items()}
    again = from_data(json.loads(json.dumps(to_data(small.train()))), state)  # pyright: ignore
    for form in (small, copy.deepcopy(small), again):
        own = copy.deepcopy(masked)
        for training in (False, True, False):
            expected, output = own.train(training)(x), form.train(training)(x)
            torch.testing.assert_close(output, expected, rtol=0, atol=1e-12)


def test_outputs_are_nested_and_named_as_the_model_returns_them() -> None:
    small = graph_of(Modes().eval(), torch.randn(4, 3, 8, 8))
    returned = small(torch.randn(2, 3, 8, 8))
    assert list(returned) == ["logits", "features"]
    assert returned.logits is returned[0]
    with pytest.raises(AttributeError, match="returns no 'loss'"):
        _ = returned.loss
    tied = graph_of(adversarial.build("tied"), adversarial.MODULES["tied"][1])
    logits, cache = tied(torch.zeros(2, 6, dtype=torch.long))
    assert logits.shape == (2, 6, 9)
    assert cache is None


def test_inputs_go_by_position_or_by_name() -> None:
    example: Any = adversarial.MODULES["keywords"][1]
    small = graph_of(adversarial.build("keywords"), example)
    assert torch.equal(small(**example), small(example["left"], example["right"]))


def test_lengths_are_free_where_export_allows_and_refused_where_not() -> None:
    free = graph_of(adversarial.build("layers"), adversarial.MODULES["layers"][1])
    for length in (3, 9):
        assert free(torch.zeros(1, length, dtype=torch.long)).shape == (1, 5)
    fixed = graph_of(architectures.build("residual"), architectures.images(2))
    assert fixed(architectures.images(7)).shape == (7, architectures.CLASSES)
    message = r"takes `x` of shape \(\w+, 3, 8, 8\), got \(2, 3, 9, 9\).* shrink again"
    with pytest.raises(ValueError, match=message):
        fixed(torch.zeros(2, 3, 9, 9))


class Unrolled(nn.Module):
    """A loop over time: the length is a part of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Embedding(9, 6), nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        state = x.new_zeros(x.shape[0], 6)
        for step in x.unbind(1):
            state = torch.tanh(self.cell(torch.cat([state, step], 1)))
        return self.head(state)


def test_a_length_that_is_baked_in_is_refused_at_the_call() -> None:
    small = graph_of(Unrolled(), torch.zeros(2, 5, dtype=torch.long))
    small(torch.zeros(3, 5, dtype=torch.long))
    with pytest.raises(ValueError, match=r"shape \(\w+, 5\), got \(3, 4\)"):
        small(torch.zeros(3, 4, dtype=torch.long))


def test_a_stream_is_cut_with_statistics_of_the_full_width() -> None:
    """Against a norm written out by hand over the masked stream."""
    model, tokens = adversarial.build("tied"), adversarial.MODULES["tied"][1]
    small = graph_of(model, tokens, streams=True)
    assert small.embed.weight.shape == (9, 3)
    assert small.certificate.form == "graph"
    x = model.embed(tokens)
    mean, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, unbiased=False)
    normed = (x - mean) / (var + 1e-5).sqrt() * model.norm.weight + model.norm.bias
    x = x + model.down(nn.functional.gelu(model.up(normed)))
    torch.testing.assert_close(small(tokens)[0], x @ model.embed.weight.T)


def test_a_form_can_be_asked_for() -> None:
    found, _, model = pruned(architectures.build("written_vit"), architectures.images())
    with pytest.raises(ValueError, match=r"differ by inf .* \(it does not run without the units"):
        shrink(model, found, architectures.images(), form="module")


class Fixed(nn.Module):
    """Says how many samples there are, by a number that export takes for a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.fc(x)) + x.new_zeros(len(x), 6))


def test_a_graph_is_compared_at_the_sizes_that_it_takes() -> None:
    small = graph_of(Fixed(), torch.randn(4, 4))
    assert small.certificate.batches == (4, 4)
    with pytest.raises(ValueError, match=r"shape \(4, 4\), got \(3, 4\)"):
        small(torch.randn(3, 4))


def test_a_comparison_that_could_not_see_a_difference_says_so() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    with torch.no_grad():
        net[0].weight.mul_(1e-9)
        net[0].bias.fill_(1.0)
    found = find_groups(net, torch.randn(4, 4))
    certificate: Any = shrink(net, found, torch.randn(4, 4)).certificate
    assert certificate.is_blind
    assert "too little for a comparison to see a mistake" in str(certificate)
    seeing: Any = graph_of(Modes().eval(), torch.randn(4, 3, 8, 8)).certificate
    assert not seeing.is_blind
    assert seeing.batches == (4, 4, 64, 1, 3)
    assert "The model is a graph: its own class was not asked for." in str(seeing)


@pytest.mark.parametrize("options", [{"attention": "width"}, {"streams": True}])
def test_pruning_by_width_or_with_streams_ends_in_a_certified_model(options: Any) -> None:
    tokens: Any = adversarial.MODULES["layers"][1]
    ticket = biprune.prune(
        adversarial.build("layers"),
        [(tokens, torch.arange(len(tokens)))],
        "magnitude",
        structure="group",
        budget={"macs": 0.6},
        epochs=1,
        example_input=tokens,
        **options,
    )
    assert ticket.chosen.items() >= options.items()
    certificate: Any = ticket.shrink(tokens).certificate
    assert certificate.units_removed == ticket.masks.total - ticket.masks.kept > 0
    assert certificate.after.macs <= 0.6 * certificate.before.macs


def test_a_graph_is_exported_to_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    small = graph_of(architectures.build("written_vit"), architectures.images())
    check = export_onnx(small, tmp_path / "small.onnx", architectures.images())
    assert check.error < 1e-5
    assert check.batches == (1, 2, 7)


def test_a_graph_can_be_shrunk_again_the_other_way() -> None:
    """First whole heads, then the width of those that are left."""
    tokens: Any = adversarial.MODULES["layers"][1]
    small = graph_of(adversarial.build("layers"), tokens)
    smaller = graph_of(small, tokens, attention="width")
    assert smaller.get_parameter("blocks.0.q.weight").shape == (4, 16)
    assert smaller.certificate.kept["blocks.0.q.weight"][0] == [0, 2, 4, 6]
    assert smaller.certificate.max_error < 1e-12


class Chunked(nn.Module):
    """Tokens padded to whole chunks, by as much as their number wants."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(9, 6), nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.relu(self.body(self.table(tokens)))
        x = nn.functional.pad(x, (0, 0, 0, -tokens.shape[1] % 4))
        chunks = x.reshape(x.shape[0], -1, 4, x.shape[-1])
        return self.head(chunks.amax(2).mean(1))


def test_padding_by_a_number_that_depends_on_the_input() -> None:
    tokens = torch.randint(9, (3, 10))
    found, _, model = pruned(Chunked(), tokens)
    sizes = {group.name: group.size for group in found.groups}
    assert sizes == {"table.weight": 6, "body.weight": 8}
    small = shrink(model, found, tokens, form="graph")
    assert small.certificate.max_error < 1e-12  # pyright: ignore
    longer = torch.randint(9, (2, 15))
    torch.testing.assert_close(small(longer), model.eval()(longer))


class PreNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(6, 16), nn.Linear(16, 3)
        self.wide, self.back = nn.Linear(16, 24), nn.Linear(24, 16)
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])

    def forward(self, tokens: Tensor) -> Tensor:
        stream = self.embed(tokens)
        stream = stream + self.back(torch.relu(self.wide(self.norms[0](stream))))
        return self.head(self.norms[1](stream).mean(1))


def test_a_masked_stream_is_exactly_zero_while_pruning() -> None:
    torch.manual_seed(0)
    model = PreNorm()
    batches = [(torch.randn(4, 5, 6), torch.randint(3, (4,))) for _ in range(4)]
    masked: list[int] = []

    def loss(model: Any, batch: Any) -> Tensor:
        def look(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            dead = (model.embed.weight == 0).all(1)
            assert torch.count_nonzero(inputs[0][..., dead]) == 0
            masked.append(int(dead.sum()))

        handle = model.norms[1].register_forward_pre_hook(look)
        found = nn.functional.cross_entropy(model(batch[0]), batch[1])
        handle.remove()
        return found

    biprune.prune(
        model, batches, structure="group", sparsity=0.5, streams=True, epochs=3, loss=loss
    )
    assert masked[0] == 0
    assert max(masked) >= 4
