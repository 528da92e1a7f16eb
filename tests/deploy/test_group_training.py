"""Groups from end to end: trained under their masks by BiP, then removed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import biprune
from architectures import build, images

NAMES = ("residual", "dense", "inverted", "grouped", "flat", "squeeze", "torch_vit", "written_vit")


def batches(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    inputs = torch.cat([images(), images().flip(0)])
    with torch.no_grad():
        num_classes = model.eval()(inputs).shape[1]
    return [(inputs, torch.arange(len(inputs)) % num_classes)] * 3


@pytest.mark.parametrize("settings", [{}, {"passes": 1}], ids=["two passes", "one pass"])
@pytest.mark.parametrize("name", NAMES)
def test_what_bip_masks_is_what_goes(name: str, settings: dict[str, int]) -> None:
    model = build(name)
    data = batches(model)
    ticket = biprune.prune(
        model, data, "bip", sparsity=0.5, structure="group", epochs=2, lr=0.05, **settings
    )
    assert ticket.masks.kept == round(0.5 * ticket.masks.total)
    small = ticket.shrink()
    assert small.certificate.units_removed == ticket.masks.total - ticket.masks.kept
    assert small.certificate.zeros_left == 0
    inputs = torch.randn(5, *data[0][0].shape[1:], generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        wanted = ticket.model.double()(inputs.double())
        torch.testing.assert_close(small.double()(inputs.double()), wanted, rtol=1e-9, atol=1e-12)


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
    assert any("LayerNorm" in reason or "norm" in reason for reason in ticket.left_out.values())
    small, inputs = ticket.shrink(), images()
    assert small.certificate.after.macs < small.certificate.before.macs
    torch.testing.assert_close(small(inputs), ticket.model(inputs), rtol=1e-4, atol=1e-5)
