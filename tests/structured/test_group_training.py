"""Groups from end to end: trained under their masks by BiP, then removed."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import biprune
from architectures import CLASSES, build, images
from biprune.core.groups import Groups
from biprune.methods.moving import MovingMask

NAMES = ("residual", "dense", "inverted", "grouped", "flat", "squeeze", "torch_vit", "written_vit")


def batches(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    inputs = torch.cat([images(), images().flip(0)])
    with torch.no_grad():
        num_classes = model.eval()(inputs).shape[1]
    return [(inputs, torch.arange(len(inputs)) % num_classes)] * 3


@pytest.mark.parametrize(
    "method",
    [biprune.BiP(), biprune.BiPPlus(), biprune.BiPPlus(passes=2)],
    ids=["bip", "bip-plus", "two passes"],
)
@pytest.mark.parametrize("name", NAMES)
def test_what_bip_masks_is_what_goes(name: str, method: MovingMask) -> None:
    model = build(name)
    data = batches(model)
    chosen = replace(method.scaled(2), lr=0.05)
    ticket = biprune.prune(model, data, chosen, sparsity=0.5, structure="group")
    assert ticket.masks.kept == round(0.5 * ticket.masks.total)
    small = ticket.shrink()
    assert small.certificate.units_removed == ticket.masks.total - ticket.masks.kept
    assert small.certificate.zeros_left == 0
    inputs = torch.randn(5, *data[0][0].shape[1:], generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = ticket.model.double()(inputs.double())
        torch.testing.assert_close(small.double()(inputs.double()), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", [*NAMES, "normed_late", "transition", "separable"])
def test_the_scores_of_every_group_move(name: str) -> None:
    """By the sum of theta * g over the gates, which must not cancel out."""
    model = build(name).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = biprune.BiP(score_lr=0.1, implicit_gradient=False, score_momentum=0.0)
    pruner = biprune.attach(
        model, optimizer, 0.5, steps=4, method=method, structure="group", example_input=images()
    )
    optimizer.step()  # of the lower level, without a gradient
    before = {group: scores.clone() for group, scores in pruner.state_dict()["scores"].items()}
    labels = torch.arange(16) % CLASSES
    nn.functional.cross_entropy(model(images(16)), labels).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    products = {name: theta * gradients[name] for name, theta in pruner.theta.items()}
    optimizer.step()
    scores, structure = pruner.state_dict()["scores"], pruner.masks.structure
    assert isinstance(structure, Groups)
    for group in structure.groups:
        parts = [part.of(products[part.tensor]) for part in group.gates]
        wanted = torch.cat(parts, dim=1).sum(dim=1)
        size = float(torch.cat(parts, dim=1).abs().sum())
        moved = (before[group.name] - scores[group.name]) / 0.1
        torch.testing.assert_close(moved, wanted, rtol=1e-3, atol=1e-5)
        assert float(wanted.abs().sum()) > 0.01 * size > 0, group.name


@pytest.mark.parametrize("name", ["torch_vit", "written_vit"])
def test_heads_and_inner_width_of_a_transformer_go(name: str) -> None:
    model = build(name)
    ticket = biprune.prune(
        model, batches(model), "magnitude", sparsity=0.5, structure="group", epochs=1
    )
    layers = ticket.masks.per_layer()
    heads = [count for layer, count in layers.items() if "attn" in layer or "attention" in layer]
    assert heads
    assert all(count.kept < count.total for count in heads)
    assert len(layers) == 2 * len(heads)  # and an inner width for each attention
    assert "norm whose statistics are over all of it" in ticket.left_out["patches.weight"]
    small, inputs = ticket.shrink(), images()
    assert small.certificate.after.macs < small.certificate.before.macs
    torch.testing.assert_close(small(inputs), ticket.model(inputs), rtol=1e-4, atol=1e-5)
