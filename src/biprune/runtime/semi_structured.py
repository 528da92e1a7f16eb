"""2:4 weights in the compressed form that GPUs multiply by (`torch.sparse`)."""

from __future__ import annotations

import copy

import torch
from torch import nn

from biprune.core.masks import Masks
from biprune.core.parameters import unwrap
from biprune.core.structure import Blocks
from biprune.training.batches import device_of

CAPABILITY = (8, 0)  # the first NVIDIA generation with sparse tensor cores
DTYPES = (torch.float16, torch.bfloat16)


def to_semi_structured(model: nn.Module, masks: Masks) -> nn.Module:
    """A copy of a 2:4 model whose pruned linear layers hold semi-structured weights.

    torch has such kernels for linear layers on NVIDIA GPUs of compute capability 8.0 and more, in
    float16 and bfloat16, so convolutions stay dense tensors with zeros.
    """
    structure = masks.structure
    if not isinstance(structure, Blocks) or (structure.kept, structure.size) != (2, 4):
        raise ValueError(
            "Semi-structured weights are those of structure '2:4', got a ticket of structure "
            f"{structure.name!r}."
        )
    _check_device(device_of(model))
    small = copy.deepcopy(unwrap(model))
    linear = {f"{name}.weight": m for name, m in small.named_modules() if isinstance(m, nn.Linear)}
    pruned = [module for name, module in linear.items() if name in masks]
    if not pruned:
        raise ValueError("The ticket has no pruned linear layer, and torch has no other kernels.")
    for module in pruned:
        if module.weight.dtype not in DTYPES:
            raise ValueError(
                f"Semi-structured kernels take float16 or bfloat16, got {module.weight.dtype}. "
                "Convert the model first: ticket.model.half()."
            )
        compressed = torch.sparse.to_sparse_semi_structured(module.weight.detach())
        module.weight = nn.Parameter(compressed, requires_grad=False)
    return small


def _check_device(device: torch.device) -> None:
    if device.type != "cuda":
        raise ValueError(
            "torch multiplies semi-structured weights on NVIDIA GPUs alone, and the model is on "
            f"{device.type!r}. Move it there, or use the masked model as it is."
        )
    if (found := torch.cuda.get_device_capability(device)) < CAPABILITY:
        raise ValueError(
            f"Semi-structured kernels need compute capability 8.0, this GPU has "
            f"{'.'.join(map(str, found))}."
        )
