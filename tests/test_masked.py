from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import biprune
from biprune.masked import Masked, apply_masks_
from biprune.parameters import prunable
from biprune.selection import Selector
from biprune.structure import get_structure
from levels import bilevel
from oracles import central_difference

WEIGHT = get_structure("weight")


def masked(model: nn.Module, sparsity: float) -> Masked:
    weights = prunable(model, WEIGHT)
    masks = Selector(WEIGHT)({n: w.detach().abs() for n, w in weights.items()}, sparsity)
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


def test_apply_masks_leaves_plus_zero(conv_net: nn.Module) -> None:
    masks = masked(copy.deepcopy(conv_net), 0.5).masks
    apply_masks_(conv_net, masks)
    for name, mask in masks.items():
        assert not torch.signbit(conv_net.get_parameter(name)[~mask]).any()
    with pytest.raises(ValueError, match=r"name 'conv1\.weight', which the model does not have"):
        apply_masks_(nn.Linear(2, 2), masks)


def test_gradients_against_finite_differences(
    conv_net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    """d/dm = theta * g and d/dtheta = m * g through convolution and BatchNorm, in float64."""
    model = conv_net.double()
    images, labels = batches[0][0].double(), batches[0][1]
    optimizer = bilevel(model, 0.5, implicit_gradient=False)
    nn.functional.cross_entropy(model(images), labels).backward()

    name = "conv1.weight"
    theta, mask = optimizer.theta[name], optimizer.masks[name].double()
    gradient = model.get_parameter(name).grad
    assert gradient is not None

    def loss(z: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(model, {name: z}, (images,)), labels)

    by_mask = central_difference(lambda m: loss(m * theta), mask, 1e-6)
    by_theta = central_difference(lambda t: loss(mask * t), theta, 1e-6)
    upper = optimizer.upper_gradient_(name, gradient.clone(), mask * gradient)
    assert torch.allclose(upper, by_mask, atol=1e-8)
    assert torch.allclose(mask * gradient, by_theta, atol=1e-8)
    assert by_mask.abs().max() > 1e-3


def test_sparse_gradients_are_refused_by_name() -> None:
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    optimizer = bilevel(model, 0.5, include="*")
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match=r"gradient of '0\.weight' is sparse"):
        optimizer.lower_step()


def test_an_embedding_with_sparse_gradients_that_is_not_pruned_is_trained() -> None:
    def trained(sparse: bool) -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3, sparse=sparse), nn.Linear(3, 2))
        data = [(torch.tensor([1, 2]), torch.tensor([0, 1]))] * 3
        return biprune.prune(model, data, "bip", sparsity=0.5, epochs=2).model

    one, other = trained(sparse=True), trained(sparse=False)
    assert torch.equal(one.get_parameter("0.weight"), other.get_parameter("0.weight"))
    assert torch.equal(one.get_parameter("1.weight"), other.get_parameter("1.weight"))
