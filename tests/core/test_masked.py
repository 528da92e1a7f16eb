from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import biprune
from biprune.core.masked import Masked, Rows
from biprune.core.masks import Masks
from biprune.core.parameters import prunable
from biprune.core.selection import select
from biprune.core.structure import get_structure
from levels import Levels
from oracles import central_difference

WEIGHT = get_structure("weight")


def masked(model: nn.Module, sparsity: float) -> Masked:
    weights = prunable(model, WEIGHT)
    masks = select({n: w.detach().abs() for n, w in weights.items()}, sparsity, WEIGHT)
    return Masked(weights, masks)


def test_weights_hold_theta_where_kept_and_plus_zero_elsewhere(conv_net: nn.Module) -> None:
    before = copy.deepcopy(conv_net)
    held = masked(conv_net, 0.7)
    for name, weight in held.weights.items():
        mask = held.masks[name]
        assert torch.equal(held.theta[name], before.get_parameter(name))
        assert torch.equal(weight[mask], held.theta[name][mask])
        assert not weight[~mask].any()
        assert not torch.signbit(weight[~mask]).any()
        assert weight.data_ptr() != held.theta[name].data_ptr()


def test_gradients_against_finite_differences(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    """d/dm = theta * g and d/dtheta = m * g through convolution and BatchNorm, in float64."""
    model = conv_net.double()
    images, labels = batches[0][0].double(), batches[0][1]
    optimizer = Levels(model, 0.5, implicit_gradient=False, score_lr=0.1)
    nn.functional.cross_entropy(model(images), labels).backward()

    name = "conv1.weight"
    theta, mask = optimizer.theta[name], optimizer.masks[name].double()
    gradient = model.get_parameter(name).grad
    assert gradient is not None

    def loss(z: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, {name: z}, (images,)), labels)

    by_mask = central_difference(lambda m: loss(m * theta), mask, 1e-6)
    by_theta = central_difference(lambda t: loss(mask * t), theta, 1e-6)
    before = optimizer.scores[name].clone()
    optimizer.upper_step()
    upper = (before - optimizer.scores[name]) / 0.1
    assert torch.allclose(upper, by_mask, atol=1e-8)
    assert torch.allclose(mask * gradient, by_theta, atol=1e-8)
    assert by_mask.abs().max() > 1e-3


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 6, bias=False), (8, 4)),
        (nn.Conv2d(4, 6, 3, bias=False), (2, 4, 5, 5)),
        (nn.Conv2d(4, 6, 3, bias=False).to(memory_format=torch.channels_last), (2, 4, 5, 5)),
        (nn.Conv1d(4, 6, 3, groups=2, bias=False), (2, 4, 5)),
        (nn.ConvTranspose2d(4, 6, 3, bias=False), (2, 4, 5, 5)),
        (nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False), (2, 4, 5, 5)),
        (nn.ConvTranspose1d(4, 4, 3, groups=4, bias=False), (2, 4, 5)),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)
@pytest.mark.parametrize("on_host", [True, False])
def test_dead_rows_are_the_outputs_that_are_always_zero(
    layer: nn.Module, shape: tuple[int, ...], on_host: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each weight: does it reach only outputs that are zero whatever the input?"""
    monkeypatch.setattr("biprune.core.masked.is_host", lambda tensor: on_host)
    model = copy.deepcopy(layer)
    weight = model.get_parameter("weight")
    generator = torch.Generator().manual_seed(2)
    kept = torch.zeros(weight.shape, dtype=torch.bool)
    kept.view(-1)[torch.randperm(kept.numel(), generator=generator)[:3]] = True
    held = Masked({"weight": weight}, Masks({"weight": kept}, WEIGHT))
    outputs = model(torch.randn(shape, generator=generator)).movedim(1, 0).flatten(1)
    is_zero = (outputs == 0).all(dim=1)
    dead = torch.empty_like(kept)
    for place in itertools.product(*map(range, weight.shape)):
        with torch.no_grad():
            weight.zero_()[place] = 1.0
            reached = model(torch.ones(shape)).movedim(1, 0).flatten(1).any(dim=1)
        dead[place] = is_zero[reached].all()
    assert 0 < dead.sum() < dead.numel()
    gradient = torch.ones_like(weight)
    Rows(model).silence_dead_({"weight": gradient}, held.masks)
    assert torch.equal(gradient, (~dead).to(gradient.dtype))


def test_sparse_gradients_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    optimizer = Levels(model, 0.5, include="*")
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match=r"gradient of '0\.weight' is sparse"):
        optimizer.lower_step()


def test_an_embedding_with_sparse_gradients_that_is_not_pruned_is_trained() -> None:
    def trained(sparse: bool) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 2))
        data = [(torch.tensor([1, 2]), torch.tensor([0, 1]))] * 3
        return biprune.prune(model, data, "bip-plus", sparsity=0.5, epochs=2).model

    one, other = trained(sparse=True), trained(sparse=False)
    assert torch.equal(one.get_parameter("0.weight"), other.get_parameter("0.weight"))
    assert torch.equal(one.get_parameter("1.weight"), other.get_parameter("1.weight"))


@pytest.mark.parametrize("outputs", [0, 1])
def test_dead_rows_of_a_square_weight_lie_along_its_outputs(outputs: int) -> None:
    """As many rows as columns: which of them an output is made of tells the dimension alone."""
    layer = nn.Linear(4, 4)
    kept = torch.ones(4, 4, dtype=torch.bool)
    kept.select(outputs, 2).fill_(False)
    gradients = {"weight": torch.ones(4, 4)}
    masks = Masks({"weight": kept}, get_structure("weight"))
    Rows(layer, {"weight": (outputs,)}).silence_dead_(gradients, masks)
    assert torch.equal(gradients["weight"], kept.float())
