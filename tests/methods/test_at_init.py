from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import biprune
from biprune.core.masks import Masks
from biprune.core.structure import get_structure
from biprune.methods.at_init import Scoring, class_balanced
from biprune.methods.base import Target
from biprune.training.batches import classification_loss
from biprune.training.loop import Setup
from biprune.training.train import TrainResult
from oracles import central_difference

Batches = list[tuple[Tensor, Tensor]]


def target(structure: str, sparsity: float = 0.5) -> Target:
    return Target(sparsity, get_structure(structure))


def scoring(model: nn.Module, batches: Batches, structure: str = "weight") -> Scoring:
    setup = Setup(batches, classification_loss)
    return Scoring(model, target(structure).weights(model), setup)


def scores(method, model: nn.Module, batches: Batches, structure: str = "weight"):
    return method.unit_scores(scoring(model, batches, structure), target(structure))


def double(batches: Batches) -> Batches:
    return [(images.double(), labels) for images, labels in batches]


class Smooth(nn.Module):
    """A network without kinks, so that second derivatives are what differences see."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 3)
        self.second = nn.Linear(3, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(images.flatten(1)[:, :64])))


def seeded(module: type[nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return module().double()


def test_snip_by_hand() -> None:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[3.0, -0.5]]))
    setup = Setup([torch.tensor([[2.0, 8.0]])], lambda model, x: model(x).sum())
    snip = biprune.SNIP().unit_scores(
        Scoring(model, {"weight": model.weight}, setup), target("weight")
    )
    # |theta g| with g the input: |3 * 2| and |-0.5 * 8|.
    assert snip["weight"].tolist() == [6.0, 4.0]


@pytest.mark.parametrize("structure", ["weight", "filter", "channel"])
def test_snip_is_the_derivative_by_a_gate(
    conv_net: nn.Module, batches: Batches, structure: str
) -> None:
    """The gate of a filter multiplies what leaves its BatchNorm; others multiply the weights."""
    model = conv_net.double().train()
    nn.init.normal_(model.get_parameter("norm2.bias"), generator=torch.Generator().manual_seed(1))
    data = double(batches)[:1]
    name = "conv2.weight"
    computed = scores(biprune.SNIP(samples=8), copy.deepcopy(model), data, structure)[name]

    def loss(gate: Tensor) -> Tensor:
        weight = model.get_parameter(name)
        if structure == "filter":
            norm = {n: gate * model.get_parameter(n) for n in ("norm2.weight", "norm2.bias")}
            logits = functional_call(model, norm, (data[0][0],))
        else:
            shaped = gate.view(weight.shape) if structure == "weight" else gate.view(1, -1, 1, 1)
            logits = functional_call(model, {name: shaped * weight}, (data[0][0],))
        return nn.functional.cross_entropy(logits, data[0][1])

    ones = torch.ones(len(computed), dtype=torch.float64)
    slope = central_difference(loss, ones, 1e-6)
    assert torch.allclose(computed, slope.abs(), atol=1e-8)
    assert slope.abs().max() > 1e-3


def test_over_a_filter_itself_the_sum_is_zero_before_a_norm(
    conv_net: nn.Module, batches: Batches
) -> None:
    model = conv_net.double().train()
    model.get_submodule("norm2").eps = 1e-30  # pyright: ignore[reportAttributeAccessIssue]
    classification_loss(model, double(batches)[0]).backward()
    weight = model.get_parameter("conv2.weight")
    assert weight.grad is not None
    products = weight.detach() * weight.grad
    assert products.flatten(1).sum(dim=1).abs().max() < 1e-12
    assert products.abs().max() > 1e-4


def hessian_product(model: nn.Module, names: list[str], batch, temperature: float) -> Tensor:
    """theta * (H g) of the named parameters from the full Hessian."""
    shapes = [model.get_parameter(n).shape for n in names]
    sizes = [shape.numel() for shape in shapes]
    theta = torch.cat([model.get_parameter(n).detach().flatten() for n in names])

    def loss(flat: Tensor) -> Tensor:
        parts = zip(names, flat.split(sizes), shapes, strict=True)
        parameters = {name: part.view(shape) for name, part, shape in parts}
        logits = functional_call(model, parameters, (batch[0],)) / temperature
        return nn.functional.cross_entropy(logits, batch[1])

    gradient = torch.autograd.functional.jacobian(loss, theta)
    hessian = torch.autograd.functional.hessian(loss, theta)
    return theta * (hessian @ gradient)  # pyright: ignore


@pytest.mark.parametrize("temperature", [1.0, 200.0])
def test_grasp_against_the_explicit_hessian(batches: Batches, temperature: float) -> None:
    model, data = seeded(Smooth), double(batches)[:1]
    names = ["first.weight", "second.weight"]
    expected = hessian_product(model, names, data[0], temperature)
    grasp = biprune.GraSP(samples_per_class=8, temperature=temperature, reinit_linear=False)
    computed = torch.cat(list(scores(grasp, model, data).values()))
    assert torch.allclose(computed, expected, rtol=1e-8, atol=1e-14 / temperature)


def test_grasp_adds_up_the_flow_of_its_chunks(batches: Batches) -> None:
    """Of two chunks the score is theta H g of the sum of both losses."""
    model, data = seeded(Smooth), double(batches)[:2]
    images, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    # The sum of two mean losses is twice the mean over both: H g is four times as large.
    names = ["first.weight", "second.weight"]
    expected = 4 * hessian_product(model, names, (images, labels), 1.0)
    grasp = biprune.GraSP(samples_per_class=16, temperature=1.0, reinit_linear=False)
    computed = torch.cat(list(scores(grasp, model, data).values()))
    assert torch.allclose(computed, expected, rtol=1e-8, atol=1e-12)


def test_grasp_draws_linear_layers_anew(batches: Batches) -> None:
    model, data = seeded(Smooth), double(batches)
    nn.init.zeros_(model.get_parameter("second.weight"))
    grasp = biprune.GraSP(samples_per_class=8, temperature=1.0)
    assert scores(grasp, copy.deepcopy(model), data)["second.weight"].all()
    still = replace(grasp, reinit_linear=False)
    assert not scores(still, model, data)["second.weight"].any()


def test_grasp_keeps_what_carries_gradient_flow(batches: Batches) -> None:
    """Scaling a weight by 1 - eps changes ||g||^2 by -2 eps times its score."""
    model, data = seeded(Smooth), double(batches)[:1]
    grasp = biprune.GraSP(samples_per_class=8, temperature=1.0, reinit_linear=False)
    computed = scores(grasp, model, data)["second.weight"]

    def flow(scale: Tensor) -> Tensor:
        names = ["first.weight", "second.weight"]
        parameters = {n: model.get_parameter(n).detach().requires_grad_() for n in names}
        second = (parameters["second.weight"].detach() * scale.view(3, 3)).requires_grad_()
        parameters["second.weight"] = second
        logits = functional_call(model, parameters, (data[0][0],))
        gradients = torch.autograd.grad(
            nn.functional.cross_entropy(logits, data[0][1]), list(parameters.values())
        )
        return torch.cat([g.flatten() for g in gradients]).square().sum()

    slope = central_difference(flow, torch.ones(9, dtype=torch.float64), 1e-5)
    assert torch.allclose(2 * computed, slope, atol=1e-8)


def test_grasp_says_when_there_are_no_logits() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, inputs: Tensor) -> dict[str, Tensor]:
            return {"out": self.layer(inputs)}

    data = [torch.ones(2, 4)]
    options = {"sparsity": 0.5, "epochs": 1, "loss": lambda model, x: model(x)["out"].sum()}
    with pytest.raises(ValueError, match=r"the model returns dict\. Pass temperature=1"):
        biprune.prune(Two(), data, "grasp", **options)
    assert biprune.prune(Two(), data, "grasp", **options, temperature=1.0).masks.kept == 8


def test_balanced_samples(batches: Batches, conv_net: nn.Module) -> None:
    chunks = class_balanced(scoring(conv_net, batches), per_class=5)
    labels = torch.cat([chunk[1] for chunk in chunks])  # pyright: ignore
    assert labels.bincount().tolist() == [5, 5, 5]
    assert [len(chunk[1]) for chunk in chunks] == [8, 7]  # pyright: ignore
    nine = [(images[:1].repeat(9, 1, 1, 1), torch.arange(9) % 3) for images, _ in batches]
    uneven = class_balanced(scoring(conv_net, nine), per_class=10)
    assert [len(chunk[1]) for chunk in uneven] == [8, 8, 7, 7]  # pyright: ignore  # not 9, 9, 9, 3


def test_samples_of_unlike_shapes_are_not_mixed(conv_net: nn.Module) -> None:
    ragged = [(torch.ones(4, 1, size, size), torch.arange(4) % 3) for size in (8, 9)]
    assert class_balanced(scoring(conv_net, ragged), per_class=2) == [ragged[0]]


class Chain(nn.Module):
    """A bias-free chain of layers, through which synaptic flow is conserved."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.second = nn.Conv2d(4, 5, 3, bias=False)
        self.head = nn.Linear(5 * 16, 3, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.second(torch.relu(self.norm(self.conv(images)))))
        return self.head(hidden.flatten(1))


@pytest.mark.parametrize("structure", ["weight", "filter"])
def test_synflow_is_conserved_from_layer_to_layer(batches: Batches, structure: str) -> None:
    model = seeded(Chain).float()
    before = copy.deepcopy(model).double().eval()
    for tensor in (*before.parameters(), *before.buffers()):
        if tensor.is_floating_point():
            tensor.data.abs_()
    flow = before(torch.ones(1, 1, 8, 8, dtype=torch.float64)).sum().item()
    found = scores(biprune.SynFlow(rounds=1), model, batches, structure)
    totals = [score.sum().item() for score in found.values()]
    assert totals == pytest.approx([flow] * len(totals), rel=1e-4)  # BatchNorm's eps


def test_synflow_empties_no_layer_of_vgg16_at_99_percent() -> None:
    """With the guard against empty layers off; in one round, which is no iteration, it does."""
    model = biprune.create_model("vgg16", width=16)
    data = [(torch.zeros(2, 3, 32, 32), torch.tensor([0, 1]))]
    kept = []
    for rounds in (100, 1):
        method = biprune.SynFlow(epochs=1, rounds=rounds)
        masks = biprune.prune(model, data, method, sparsity=0.99, allow_empty=True).masks
        kept.append(min(count.kept for count in masks.per_layer().values()))
    assert kept[0] > 0
    assert kept[1] == 0


class Encoder(nn.Module):
    """Attention without dropout, whose fused kernels have no second derivative."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)
        self.scale = 0.5

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.encoder(images.flatten(1, 2)).mean(dim=1))


def test_synflow_removes_along_an_exponential_and_never_takes_back(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where scores are not positive, behind LayerNorm and softmax."""
    passed: list[Masks] = []
    original = Masks.apply_

    def recorded(masks: Masks, model: nn.Module) -> None:
        passed.append(masks)
        original(masks, model)

    monkeypatch.setattr(Masks, "apply_", recorded)
    torch.manual_seed(0)
    method = biprune.SynFlow(epochs=1, rounds=10)
    ticket = biprune.prune(Encoder(), batches, method, sparsity=0.75)
    total = ticket.masks.total
    del passed[9:]  # behind them the last mask is applied
    assert [m.kept for m in passed] == [round(0.25 ** (t / 10) * total) for t in range(1, 10)]
    for earlier, later in pairwise([*passed, ticket.masks]):
        assert not (later.units() & ~earlier.units()).any()


@pytest.mark.parametrize("method", ["snip", "grasp", "prospr", "synflow", "random"])
def test_the_loss_gets_the_model_itself(batches: Batches, method: str) -> None:
    seen: list[bool] = []

    def loss(model: nn.Module, batch: object) -> Tensor:
        assert isinstance(model, Encoder)
        seen.append(model.training)
        inputs, labels = batch  # pyright: ignore[reportGeneralTypeIssues]
        return nn.functional.cross_entropy(model(inputs) * model.scale, labels)

    torch.manual_seed(0)
    ticket = biprune.prune(Encoder(), batches, method, sparsity=0.5, epochs=1, loss=loss)
    assert ticket.masks.kept == round(0.5 * ticket.masks.total)
    assert all(seen)  # BatchNorm would score in train mode


@pytest.mark.parametrize("method", ["snip", "grasp", "prospr", "random"])
def test_another_seed_gives_another_mask(conv_net: nn.Module, method: str) -> None:
    data = TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(3, (64,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    options = {"samples": 8} if method in ("snip", "prospr") else {}
    masks = [
        biprune.prune(conv_net, loader, method, sparsity=0.5, epochs=1, seed=seed, **options).masks
        for seed in (0, 0, 1)
    ]
    assert masks[0] == masks[1] != masks[2]


def test_frozen_norms_carry_the_gate_all_the_same(conv_net: nn.Module, batches: Batches) -> None:
    expected = scores(biprune.SNIP(), copy.deepcopy(conv_net), batches, "filter")
    for name in ("norm1", "norm2"):
        conv_net.get_submodule(name).requires_grad_(False)
    found = scores(biprune.SNIP(), copy.deepcopy(conv_net), batches, "filter")
    assert all(torch.equal(found[name], score) for name, score in expected.items())
    ticket = biprune.prune(conv_net, batches, "snip", sparsity=0.5, structure="filter", epochs=1)
    assert not ticket.model.get_parameter("norm1.weight").requires_grad


def test_a_norm_without_parameters_carries_no_gate(batches: Batches) -> None:
    bare = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, affine=False), nn.Flatten(), nn.Linear(144, 3)
    )
    with pytest.raises(ValueError, match=r"filters of '0\.weight' feed a norm without weight and"):
        biprune.prune(bare, batches, "snip", sparsity=0.5, structure="filter", epochs=1)


class Causal(nn.Module):
    """Attention under a mask of -inf, whose absolute value would be another mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((8, 8), -torch.inf).triu(1))

    def forward(self, images: Tensor) -> Tensor:
        rows = images.squeeze(1)
        mixed, _ = self.attention(rows, rows, rows, attn_mask=self.mask, need_weights=False)
        return self.head(mixed.mean(dim=1))


def test_synflow_leaves_masks_of_infinity_alone(batches: Batches) -> None:
    model = seeded(Causal).float()
    ticket = biprune.prune(model, batches, "synflow", sparsity=0.5, epochs=1)
    assert torch.equal(ticket.model.get_buffer("mask"), model.get_buffer("mask"))


class Opaque:
    """A batch that moves itself and does not say how many samples it has."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels

    def to(self, device: torch.device) -> Opaque:
        return Opaque(self.images.to(device), self.labels.to(device))


@pytest.mark.parametrize(("method", "passes"), [("snip", 1), ("prospr", 4)])
def test_of_batches_that_do_not_tell_their_size_one_is_enough(
    batches: Batches, conv_net: nn.Module, method: str, passes: int
) -> None:
    data = [Opaque(*batch) for batch in batches]

    def loss(model: nn.Module, batch: object) -> Tensor:
        assert isinstance(batch, Opaque)
        return nn.functional.cross_entropy(model(batch.images), batch.labels)

    ticket = biprune.prune(conv_net, data, method, sparsity=0.5, epochs=1, loss=loss)
    assert ticket.cost.backward_passes == passes + len(data)


def test_random_like_another_goes_by_counts_not_by_costs(batches: Batches) -> None:
    model, half = biprune.create_model("resnet8", in_channels=1, width=4), {"macs": 0.5}
    options = {"structure": "group", "budget": half, "epochs": 1}
    like = biprune.prune(model, batches, "omp", **options).masks
    with pytest.raises(ValueError, match="`like` goes by counts of units, a `budget`"):
        biprune.prune(
            model, batches, biprune.Random(like=like, epochs=1), **options | {"epochs": None}
        )


def test_prospr_counts_the_batches_of_a_draw(batches: Batches, conv_net: nn.Module) -> None:
    two = 2 * len(batches[0][1])
    ticket = biprune.prune(conv_net, batches, "prospr", sparsity=0.5, epochs=1, samples=two)
    assert ticket.cost.backward_passes == ticket.cost.forward_passes == 4 * 2 + len(batches)


class Counting(IterableDataset):
    """Samples that are their own number, without a length."""

    def __iter__(self):
        return ((torch.full((1, 8, 8), float(n)), n % 3) for n in range(32))


def test_draws_follow_one_another_whatever_the_loader(conv_net: nn.Module) -> None:
    loader = DataLoader(Counting(), batch_size=8, num_workers=1, persistent_workers=True)
    drawn = Scoring(conv_net, target("weight").weights(conv_net), Setup(loader, lambda m, b: b))
    stream = drawn.stream()
    firsts = [int(drawn.batches(8, stream)[0][0][0].max()) for _ in range(5)]  # pyright: ignore
    assert firsts == [0, 8, 16, 24, 0]


@pytest.mark.parametrize("method", ["snip", "grasp", "prospr"])
def test_frozen_norms_are_scored_as_they_are_trained(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    norm = conv_net.get_submodule("norm1").requires_grad_(False)
    modes: set[bool] = set()

    def loss(model: nn.Module, batch: object) -> Tensor:
        modes.add(model.get_submodule("norm1").training)
        return classification_loss(model, batch)

    biprune.prune(conv_net, batches, method, sparsity=0.5, epochs=1, loss=loss)
    assert modes == {False}
    assert norm.training


@pytest.mark.parametrize("method", ["snip", "grasp", "prospr", "bip-plus"])
def test_a_loss_that_is_no_tensor(conv_net: nn.Module, batches: Batches, method: str) -> None:
    with pytest.raises(TypeError, match="`loss` must return a scalar tensor, got float"):
        biprune.prune(conv_net, batches, method, sparsity=0.5, epochs=1, loss=lambda m, b: 1.0)  # pyright: ignore


def test_synflow_stays_finite_where_float32_would_not() -> None:
    model = biprune.create_model("resnet56")
    data = [(torch.zeros(1, 3, 32, 32), torch.tensor([0]))]
    for parameter in model.parameters():
        parameter.data *= 3
    found = scores(biprune.SynFlow(rounds=1), model, data)
    total = torch.cat(list(found.values())).sum()
    assert torch.isfinite(total)
    assert total > torch.finfo(torch.float32).max


def test_synflow_needs_inputs_it_can_replace_by_ones() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    data = [{"x": torch.ones(1, 2)}]
    with pytest.raises(ValueError, match="SynFlow feeds the model one input of ones"):
        biprune.prune(
            model, data, "synflow", sparsity=0.5, epochs=1, loss=lambda m, b: m(b["x"]).sum()
        )


@pytest.mark.parametrize("structure", ["weight", "filter", "channel"])
@pytest.mark.parametrize("first_order", [False, True])
def test_prospr_without_inner_steps_is_snip(
    conv_net: nn.Module, batches: Batches, structure: str, first_order: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    nn.init.normal_(conv_net.get_parameter("norm2.bias"), generator=generator)
    prospr = biprune.ProsPr(inner_steps=0, samples=8, first_order=first_order)
    one = scores(prospr, copy.deepcopy(conv_net), batches, structure)
    other = scores(biprune.SNIP(samples=8), copy.deepcopy(conv_net), batches, structure)
    for name, score in other.items():
        assert torch.allclose(one[name], score, atol=1e-7)
    options = {"sparsity": 0.7, "structure": structure, "epochs": 1, "seed": 4}
    method = biprune.ProsPr(inner_steps=0, first_order=first_order)
    with_prospr = biprune.prune(conv_net, batches, method, **options)
    assert with_prospr.masks == biprune.prune(conv_net, batches, "snip", **options).masks


def test_prospr_against_differences_through_the_unrolled_steps(batches: Batches) -> None:
    model, data = seeded(Smooth), double(batches)
    prospr = biprune.ProsPr(inner_steps=2, inner_lr=0.3, inner_momentum=0.9, samples=8)
    computed = scores(prospr, copy.deepcopy(model), data)["second.weight"]

    def after_training(gate: Tensor) -> Tensor:
        trained = copy.deepcopy(model)
        with torch.no_grad():
            trained.get_parameter("second.weight").mul_(gate.view(3, 3))
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.3, momentum=0.9)
        for batch in data[:2]:
            optimizer.zero_grad()
            classification_loss(trained, batch).backward()
            optimizer.step()
        return classification_loss(trained, data[2]).detach()

    slope = central_difference(after_training, torch.ones(9, dtype=torch.float64), 1e-5)
    assert torch.allclose(computed, slope.abs(), atol=1e-8)
    first = biprune.ProsPr(
        inner_steps=2, inner_lr=0.3, inner_momentum=0.9, samples=8, first_order=True
    )
    cheap = scores(first, copy.deepcopy(model), data)["second.weight"]
    assert not torch.allclose(cheap, slope.abs(), atol=1e-4)
    assert torch.cosine_similarity(cheap, slope.abs(), dim=0) > 0.5


def test_prospr_of_first_order_by_hand(batches: Batches) -> None:
    model, data = seeded(Smooth), double(batches)
    inner = {"inner_steps": 2, "inner_lr": 0.3, "inner_momentum": 0.9}
    method = biprune.ProsPr(samples=8, first_order=True, **inner)
    computed = scores(method, copy.deepcopy(model), data)
    trained = copy.deepcopy(model)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.3, momentum=0.9)
    for batch in data[:2]:
        optimizer.zero_grad()
        classification_loss(trained, batch).backward()
        optimizer.step()
    trained.zero_grad()
    classification_loss(trained, data[2]).backward()
    for name, found in computed.items():
        gradient = trained.get_parameter(name).grad
        wanted = (model.get_parameter(name) * gradient).abs().flatten()
        torch.testing.assert_close(found, wanted.detach())


def test_random_densities() -> None:
    model = biprune.create_model("resnet8", num_classes=3, in_channels=1, width=8)
    data = [(torch.zeros(2, 1, 8, 8), torch.tensor([0, 1]))]
    everywhere = biprune.prune(model, data, "random", sparsity=0.8, epochs=1).masks
    for name, count in everywhere.per_layer().items():
        spread = (0.2 * 0.8 / count.total) ** 0.5
        assert abs(1 - count.sparsity - 0.2) < 5 * spread, name


def test_what_random_is_like_cannot_be_written_down(
    conv_net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    masks = biprune.prune(conv_net, batches, "magnitude", sparsity=0.8, epochs=1).masks
    with pytest.raises((TypeError, ValueError), match="only `prune` takes them"):
        biprune.compare(
            [biprune.Random(like=masks)],
            "digits",
            "resnet8",
            sparsities=[0.8],
            seeds=[0],
            store=tmp_path,
        )


def test_random_like_another_ticket(conv_net: nn.Module, batches: Batches) -> None:
    ticket = biprune.prune(conv_net, batches, "magnitude", sparsity=0.8, epochs=1)
    shuffled = biprune.prune(
        conv_net, batches, biprune.Random(like=ticket.masks, epochs=1), sparsity=0.8
    )
    assert shuffled.masks.per_layer() == ticket.masks.per_layer()
    assert shuffled.masks.overlap(ticket.masks) < 0.4
    assert shuffled.settings["like"] is True
    by_layer = biprune.prune(
        conv_net, batches, biprune.Random(like=ticket.masks, epochs=1), sparsity=0.8, scope="layer"
    )
    assert by_layer.masks.per_layer() == ticket.masks.per_layer()
    with pytest.raises(ValueError, match="`like` has masks of other tensors, units or sparsity"):
        biprune.prune(conv_net, batches, biprune.Random(like=ticket.masks), sparsity=0.5)
    with pytest.raises(ValueError, match="`like` has masks of other tensors"):
        biprune.prune(
            conv_net,
            batches,
            biprune.Random(like=ticket.masks, epochs=1),
            sparsity=0.8,
            exclude="head",
        )


def test_a_bare_module_is_scored_as_it_is(conv_net: nn.Module, batches: Batches) -> None:
    ticket = biprune.prune(conv_net, batches, "snip", sparsity=0.5, epochs=1)
    assert ticket.history[0]["note"].startswith("not rewound")
    dense = biprune.train(conv_net, batches, epochs=3)
    assert isinstance(dense, TrainResult)
    from_dense = biprune.prune(dense, batches, "snip", sparsity=0.5, epochs=1)
    assert from_dense.masks == ticket.masks  # the initial weights are those of the bare module


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (lambda: biprune.SynFlow(rounds=0), "`rounds` must be at least 1, got 0"),
        (lambda: biprune.ProsPr(inner_steps=-1), "`inner_steps` must be at least 0, got -1"),
        (lambda: biprune.ProsPr(inner_momentum=-1), "`inner_momentum` must be 0 or more, got -1"),
        (lambda: biprune.SNIP(samples=0), "`samples` must be at least 1, got 0"),
        (lambda: biprune.GraSP(temperature=0), "`temperature` must be positive, got 0"),
        (lambda: biprune.GraSP(samples_per_class=0), "`samples_per_class` must be at least 1"),
    ],
)
def test_bad_settings(method, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        method()
