from __future__ import annotations

import re
from collections import UserDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.prune import l1_unstructured

import biprune
from biprune.core.masks import Masks
from biprune.methods.base import Outcome, Start, Target, retrain_
from biprune.training.batches import classification_loss
from biprune.training.loop import Setup

Batches = list[tuple[Tensor, Tensor]]


class Named(NamedTuple):
    inputs: Tensor
    labels: Tensor


def check(ticket: biprune.Ticket, sparsity: float) -> None:
    """What every ticket promises."""
    assert ticket.masks.kept == round((1 - sparsity) * ticket.masks.total)
    for name, mask in ticket.masks.items():
        weight = ticket.model.get_parameter(name)
        assert not weight[~mask].any()
        assert not torch.signbit(weight[~mask]).any()
        assert mask.any()
        assert weight.grad is None


def test_global_filters(conv_net: nn.Module, batches: Batches) -> None:
    with torch.no_grad():
        conv_net.get_parameter("conv1.weight").mul_(100)
    local = biprune.prune(conv_net, batches, "omp", sparsity=0.5, structure="filter", epochs=1)
    assert [n.kept for n in local.masks.per_layer().values()] == [3, 6]
    ranked = biprune.prune(
        conv_net, batches, "omp", sparsity=0.5, structure="filter", scope="global", epochs=1
    )
    assert [n.kept for n in ranked.masks.per_layer().values()] == [6, 3]


def test_random_draws_by_seed(conv_net: nn.Module, batches: Batches) -> None:
    first, other = (
        biprune.prune(conv_net, batches, "random", sparsity=0.5, epochs=1, seed=seed).masks
        for seed in (0, 1)
    )
    # Two independent masks that keep half overlap in a third of their union.
    assert first.overlap(other) == pytest.approx(1 / 3, abs=0.08)


def test_omp_keeps_the_largest_and_rewinds(conv_net: nn.Module, batches: Batches) -> None:
    dense = biprune.train(conv_net, batches, epochs=2, rewind_epochs=[0, 1])
    ticket = biprune.prune(dense, batches, "omp", sparsity=0.8, epochs=1)
    magnitudes = torch.cat(
        [dense.model.get_parameter(name).detach().abs().flatten() for name in ticket.masks]
    )
    kept = torch.cat([mask.flatten() for mask in ticket.masks.values()])
    assert magnitudes[kept].min() >= magnitudes[~kept].max()
    assert ticket.history[0]["note"] == "rewound to epoch 1"
    start = type(conv_net)()
    start.load_state_dict(dense.states[1])
    again = biprune.train(start, batches, epochs=1, masks=ticket.masks)
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, ticket.model.state_dict()[name])


def test_a_bare_module_is_not_rewound_and_the_history_says_so(
    conv_net: nn.Module, batches: Batches
) -> None:
    ticket = biprune.prune(conv_net, batches, "omp", sparsity=0.5, epochs=1)
    assert ticket.history[0]["note"].startswith("not rewound: a bare module was given")


@pytest.mark.parametrize(("method", "epoch"), [("omp", 1), ("snip", 0)])
def test_states_that_were_not_kept_are_missed(
    conv_net: nn.Module, batches: Batches, method: str, epoch: int
) -> None:
    """A result without states is no bare module: pruning trained weights would go unnoticed."""
    dense = biprune.train(conv_net, batches, epochs=1, rewind_epochs=[])
    with pytest.raises(ValueError, match=f"rewind to epoch {epoch}: its state was not kept"):
        biprune.prune(dense, batches, method, sparsity=0.5, epochs=1)


def test_dense_is_the_control(conv_net: nn.Module, batches: Batches, same_state) -> None:
    ticket = biprune.prune(conv_net, batches, "dense", sparsity=0.0, evaluate=lambda model: 1.0)
    assert same_state(ticket.model, conv_net)
    assert (ticket.masks.sparsity, ticket.cost.forward_passes, ticket.accuracy) == (0.0, 0, 1.0)


@pytest.mark.parametrize("structure", ["weight", "filter", "group"])
def test_a_ticket_knows_what_its_model_takes(
    conv_net: nn.Module, batches: Batches, structure: str
) -> None:
    ticket = biprune.prune(conv_net, batches, "omp", sparsity=0.5, structure=structure, epochs=1)
    assert (ticket.input_shape, ticket.input_dtype) == ([1, 8, 8], "float32")
    images = batches[0][0]
    torch.testing.assert_close(ticket.shrink()(images), ticket.model(images))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"evaluate": []}, "`evaluate` must be a function, got list. It is called with the model."),
        ({"validate": 1}, "`validate` must be a function, got int."),
        ({"progress": True}, "`progress` must be a function, got bool. It is called with an `Ev"),
        ({"loss": nn.CrossEntropyLoss()}, "CrossEntropyLoss takes outputs and labels: pass a func"),
        ({"lr": "0.1"}, "`lr` must be a number, got '0.1'."),
    ],
)
@pytest.mark.parametrize("run", [biprune.train, partial(biprune.prune, sparsity=0.5)])
def test_what_cannot_be_called_is_refused_before_the_run(
    conv_net: nn.Module, batches: Batches, run: Any, given: dict[str, object], said: str
) -> None:
    heard: list[object] = []
    with pytest.raises(TypeError, match=re.escape(said)):
        run(conv_net, batches, epochs=1, **{"progress": heard.append, **given})
    assert heard == []


@pytest.mark.parametrize("shape", [(8, 1), (8,)])
def test_regression_needs_a_loss_of_its_own(shape: tuple[int, ...]) -> None:
    """Cross-entropy takes targets of the outputs' shape for probabilities: of one class, 0."""
    model = nn.Sequential(nn.Linear(4, 1), *([] if len(shape) == 2 else [nn.Flatten(0)]))
    data = [(torch.randn(8, 4), torch.randn(shape))]
    with pytest.raises(ValueError, match=r"outputs of shape .* have no two classes"):
        biprune.prune(model, data, sparsity=0.5, epochs=1)


def test_recurrent_layers_are_pruned_if_named() -> None:
    with pytest.raises(
        ValueError, match=r"such as include='weight_ih_l0'; include=.\*. names everything"
    ):
        biprune.prune(nn.LSTM(4, 4), [(torch.randn(2, 3, 4), torch.zeros(2))], sparsity=0.5)


def test_nested_batches_and_a_users_own_loss(conv_net: nn.Module, batches: Batches) -> None:
    def from_dict(model: nn.Module, batch: object) -> Tensor:
        assert isinstance(batch, dict)
        return nn.functional.cross_entropy(model(batch["x"]["image"]), batch["y"][0])

    def from_named(model: nn.Module, batch: object) -> Tensor:
        assert isinstance(batch, Named)
        return nn.functional.cross_entropy(model(batch.inputs), batch.labels)

    nested = [{"x": {"image": x}, "y": [y, "note"]} for x, y in batches]
    named = [Named(x, y) for x, y in batches]
    plain = biprune.prune(conv_net, batches, sparsity=0.7, epochs=1)
    assert (
        biprune.prune(conv_net, nested, sparsity=0.7, epochs=1, loss=from_dict).masks == plain.masks
    )
    assert (
        biprune.prune(conv_net, named, sparsity=0.7, epochs=1, loss=from_named).masks == plain.masks
    )


def test_evaluate_is_called_once_with_the_final_model(
    conv_net: nn.Module, batches: Batches
) -> None:
    seen: list[int] = []

    def evaluate(model: nn.Module) -> float:
        assert not model.training
        seen.append(sum(int(torch.count_nonzero(p)) for p in model.parameters() if p.ndim > 1))
        return 42.0

    ticket = biprune.prune(conv_net, batches, sparsity=0.9, epochs=2, evaluate=evaluate)
    assert seen == [ticket.masks.kept]
    assert ticket.accuracy == 42.0


class Encoder(nn.Module):
    """A small transformer for sequence classification."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images.flatten(1, 2)).mean(dim=1))


class TiedMLP(nn.Module):
    """An autoencoder-like classifier whose two hidden layers share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.head = nn.Linear(64, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.first(images.flatten(1)))
        return self.head(torch.relu(self.second(hidden)))


@pytest.mark.parametrize("method", ["bip-plus", "omp"])
def test_a_transformer_encoder(batches: Batches, method: str) -> None:
    torch.manual_seed(0)
    ticket = biprune.prune(Encoder(), batches, method, sparsity=0.9, epochs=2)
    check(ticket, 0.9)
    assert "encoder.layers.1.self_attn.in_proj_weight" in ticket.masks


@pytest.mark.parametrize("method", ["bip-plus", "omp"])
def test_tied_weights_are_one_set_of_units(batches: Batches, method: str) -> None:
    torch.manual_seed(0)
    ticket = biprune.prune(TiedMLP(), batches, method, sparsity=0.9, epochs=2)
    check(ticket, 0.9)
    assert list(ticket.masks) == ["first.weight", "head.weight"]
    assert ticket.masks.total == 64 * 64 + 64 * 3
    assert ticket.model.second.weight is ticket.model.first.weight  # pyright: ignore


class LeNet(nn.Module):
    """Flattens with `view`, which relies on the usual memory layout, and holds a 4-d parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.scale = nn.Parameter(torch.ones(1, 4, 1, 1))
        self.head = nn.Linear(4 * 9, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = nn.functional.max_pool2d(torch.relu(self.conv(images)) * self.scale, 2)
        return self.head(hidden.view(len(images), -1))


@pytest.mark.parametrize("method", ["bip-plus", "omp"])
def test_a_model_that_flattens_with_view(batches: Batches, method: str) -> None:
    check(biprune.prune(LeNet(), batches, method, sparsity=0.5, epochs=1), 0.5)


def test_batches_that_move_themselves(conv_net: nn.Module, batches: Batches) -> None:
    class Tokens(UserDict):
        moved = 0

        def to(self, device: torch.device) -> Tokens:
            Tokens.moved += 1
            return self

        def __getattr__(self, name: str) -> Tensor:
            return self[name]

    def loss(model: nn.Module, batch: object) -> Tensor:
        assert isinstance(batch, Tokens)
        return nn.functional.cross_entropy(model(batch.x), batch.y)

    data = [Tokens(x=x, y=y) for x, y in batches]
    biprune.prune(conv_net, data, "bip", sparsity=0.5, epochs=1, loss=loss)
    assert Tokens.moved == 8


def test_random_is_not_the_initial_weights() -> None:
    """The model's initializer and the method draw from different streams, at the same seed."""
    model = biprune.create_model("resnet18", width=8, seed=0)
    data = [(torch.zeros(2, 3, 8, 8), torch.tensor([0, 1]))]
    masks = biprune.prune(model, data, "random", sparsity=0.5, epochs=1, seed=0).masks
    for name, mask in masks.items():
        weight = model.get_parameter(name).detach()
        if weight.numel() > 5000:
            kept, all_ = weight[mask].mean(), weight.mean()
            assert abs(kept - all_) < 6 * weight.std() / mask.sum().sqrt(), name


@pytest.mark.parametrize("method", ["bip-plus", "omp"])
def test_frozen_parameters_are_left_alone(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    frozen = ("conv1.weight", "norm1.weight")
    for name in frozen:
        conv_net.get_parameter(name).requires_grad_(False)
    ticket = biprune.prune(conv_net, batches, method, sparsity=0.5, epochs=2)
    assert list(ticket.masks) == ["conv2.weight", "head.weight"]
    for name in frozen:
        assert torch.equal(ticket.model.get_parameter(name), conv_net.get_parameter(name))
        assert not ticket.model.get_parameter(name).requires_grad


@pytest.mark.parametrize("method", ["bip-plus", "omp"])
def test_a_frozen_part_computes_as_before(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    """Statistics of its norms would follow the data in training mode."""
    for name in ("conv1", "norm1"):
        conv_net.get_submodule(name).requires_grad_(False)
    ticket = biprune.prune(conv_net, batches, method, sparsity=0.5, epochs=2)
    for name in ("norm1", "norm2"):
        before, after = (m.get_buffer(f"{name}.running_mean") for m in (conv_net, ticket.model))
        assert torch.equal(before, after) is (name == "norm1")


def test_a_weight_that_a_hook_computes_is_refused_by_name(
    conv_net: nn.Module, batches: Batches
) -> None:
    l1_unstructured(conv_net.get_submodule("conv2"), "weight", 0.5)
    conv_net(batches[0][0])
    with pytest.raises(ValueError, match=r"`conv2\.weight` is computed from other tensors"):
        biprune.prune(conv_net, batches, "bip-plus", sparsity=0.5, epochs=1)


def test_a_compiled_model(conv_net: nn.Module, batches: Batches, same_state) -> None:
    compiled = torch.compile(conv_net, backend="eager")
    ticket = biprune.prune(compiled, batches, sparsity=0.8, epochs=2)  # pyright: ignore
    plain = biprune.prune(conv_net, batches, sparsity=0.8, epochs=2)
    assert type(ticket.model) is type(conv_net)
    assert same_state(ticket.model, plain.model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile_as_an_option(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, compile, compiled = TiedMLP(), torch.compile, []
    monkeypatch.setattr(torch, "compile", lambda given: compiled.append(given) or compile(given))
    ticket = biprune.prune(model, batches, sparsity=0.8, epochs=2, compile=True)
    plain = biprune.prune(model, batches, sparsity=0.8, epochs=2)
    assert compiled == [ticket.model]
    check(ticket, 0.8)
    assert ticket.masks.overlap(plain.masks) > 0.95  # fused kernels round differently


def test_precision_and_layout_of_a_pruning(conv_net: nn.Module, batches: Batches) -> None:
    seen: set[torch.dtype] = set()

    def loss(model: nn.Module, batch: object) -> Tensor:
        found = classification_loss(model, batch)
        seen.add(model(batch[0]).dtype)  # pyright: ignore[reportIndexIssue]
        return found

    dense = biprune.train(conv_net, batches, epochs=1)
    options = {"autocast": True, "channels_last": True, "loss": loss}
    ticket = biprune.prune(dense, batches, "gmp", sparsity=0.5, epochs=1, **options)
    assert seen == {torch.bfloat16}
    weight = ticket.model.get_parameter("conv2.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Wrong(biprune.OMP):
    """Keeps the first so many weights of each layer, whatever was asked for."""

    kept: tuple[tuple[str, int], ...] = ()

    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        weights = target.weights(start.model)
        masks = {name: torch.zeros_like(w, dtype=torch.bool) for name, w in weights.items()}
        for name, count in self.kept:
            masks[name].view(-1)[:count] = True
        return retrain_(start.model, Masks(masks, target.structure), self.recipe(), setup, "")


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ((("0.weight", 5), ("1.weight", 5)), "kept 10 units where 8 were asked for"),
        ((("0.weight", 8),), r"emptied the layers 1\.weight"),
    ],
)
def test_a_method_that_breaks_its_promise_is_found_out(
    kept: tuple[tuple[str, int], ...], text: str
) -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4))
    batch = (torch.ones(2, 4), torch.tensor([0, 1]))
    with pytest.raises(RuntimeError, match=text):
        biprune.prune(model, [batch], Wrong(epochs=1, kept=kept), sparsity=0.5)


def test_unused_weights_do_not_stop_a_run(conv_net: nn.Module, batches: Batches) -> None:
    conv_net.spare = nn.Linear(5, 5)
    check(biprune.prune(conv_net, batches, sparsity=0.5, epochs=1), 0.5)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"sparsity": 90}, ValueError, r"`sparsity` must be in \[0, 1\), got 90. Did you mean 0.9"),
        ({"method": "bpi"}, ValueError, r"'bpi'\. Methods: bip-plus, .*Closest: bip\."),
        ({"gama": 1.0}, TypeError, "'bip-plus' has no setting 'gama'. Settings: epochs, lr"),
        (
            {"method": biprune.BiPPlus(), "lr": 1.0},
            TypeError,
            r"go into the method object: BiPPlus\(lr=",
        ),
        ({"structure": "row"}, ValueError, "Unknown structure 'row'"),
        ({"structure": "group", "scope": "globl"}, ValueError, "`scope` must be one of"),
        ({"exclude": "*"}, ValueError, "nothing to prune"),
        ({"epochs": 0}, ValueError, "`epochs` must be at least 1, got 0"),
        ({"model": "resnet"}, TypeError, "`model` must be a torch.nn.Module .* got str"),
        ({"data": []}, ValueError, "the loader is empty"),
        ({"sparsity": "0.9"}, TypeError, "`sparsity` must be a number in .* got '0.9'"),
        ({"epochs": 1.5}, TypeError, "`epochs` must be a whole number, got 1.5"),
        (
            {"sparsity": 0.99, "structure": "filter"},
            ValueError,
            "keeps 0 of 18 filter units, too few for one in each of 2 layers",
        ),
    ],
)
def test_bad_input(
    conv_net: nn.Module, batches: Batches, arguments: dict, error: type, text: str
) -> None:
    call = {"model": conv_net, "data": batches, "method": "bip-plus", "sparsity": 0.5} | arguments
    with pytest.raises(error, match=text):
        biprune.prune(**call)


def test_a_checkpoint_of_another_budget_is_refused(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]], tmp_path: Path
) -> None:
    options = {"structure": "group", "epochs": 1, "checkpoint": tmp_path}
    biprune.prune(conv_net, batches, "gmp", sparsity=0.5, **options)
    for other in ({"budget": {"macs": 0.5}}, {"sparsity": 0.5, "round_to": 2}):
        with pytest.raises(ValueError, match="belongs to another run"):
            biprune.prune(conv_net, batches, "gmp", **other, **options)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 8), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.relu(self.left(left) + self.right(right)))


def test_groups_of_a_model_with_two_inputs() -> None:
    example = (torch.randn(6, 4), torch.randn(6, 4))
    ticket = biprune.prune(
        TwoInputs(),
        [(*example, torch.arange(6) % 3)],
        "magnitude",
        sparsity=0.5,
        structure="group",
        epochs=1,
        loss=lambda model, batch: nn.functional.cross_entropy(model(*batch[:2]), batch[2]),
        example_input=example,
    )
    with pytest.raises(ValueError, match="not a single tensor"):
        ticket.shrink()
    small = ticket.shrink(example)
    torch.testing.assert_close(small(*example), ticket.model(*example))
    assert small.left.out_features == small.right.out_features == 4


def test_a_ticket_remembers_the_precision_of_its_input(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]], tmp_path: Path
) -> None:
    data = [(images.double(), labels) for images, labels in batches]
    options = {"structure": "group", "sparsity": 0.5, "epochs": 1}
    ticket = biprune.prune(conv_net.double(), data, "magnitude", **options)
    ticket.save(tmp_path)
    again = biprune.load_ticket(tmp_path, model=conv_net)
    assert again.example_input(3).dtype == torch.float64
    assert again.shrink().certificate.max_error < 1e-12
