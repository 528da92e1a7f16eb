"""Linear layers with kernels that skip zeros: compressed sparse rows, and 2:4 on GPUs."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn

from biprune.core.masks import Masks
from biprune.core.parameters import unwrap
from biprune.training.batches import device_of


class CsrLinear(nn.Module):
    """A linear layer with a sparse weight, for inference on the CPU."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        dense = layer.weight.detach()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            rows = dense.to_sparse_csr()
            # 32 bits are half the default, and what the kernel takes without a conversion.
            weight = torch.sparse_csr_tensor(
                rows.crow_indices().int(),
                rows.col_indices().int(),
                rows.values(),
                dense.shape,
                check_invariants=True,
            )
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = layer.bias
        self.in_features, self.out_features = layer.in_features, layer.out_features

    def forward(self, inputs: Tensor) -> Tensor:
        """x W^T as (W x^T)^T, since inference mode refuses to transpose a sparse tensor."""
        columns = inputs.flatten(0, -2).t()
        outputs = (self.weight @ columns).t().unflatten(0, inputs.shape[:-1])
        return outputs if self.bias is None else outputs + self.bias


def with_csr(model: nn.Module) -> nn.Module | None:
    """A copy in which linear layers with zeros are sparse, or None if there are none.

    Convolutions stay dense, since torch has no sparse ones. So do linear layers of attention and of
    nn.TransformerEncoderLayer, which read the weights without calling the layers.
    """
    found = copy.deepcopy(model)
    replaced = 0
    for parent in list(found.modules()):
        if isinstance(parent, nn.TransformerEncoderLayer):
            continue
        for name, layer in parent.named_children():
            # This very class: attention has a subclass, and reads its weight without calling it.
            if (
                type(layer) is nn.Linear
                and torch.count_nonzero(layer.weight) < layer.weight.numel()
            ):
                setattr(parent, name, CsrLinear(layer))
                replaced += 1
    return found.eval() if replaced else None


CAPABILITY = (8, 0)  # the first NVIDIA generation with sparse tensor cores
DTYPES = (torch.float16, torch.bfloat16)


def to_semi_structured(model: nn.Module, masks: Masks) -> nn.Module:
    """A copy of a 2:4 model whose pruned linear layers hold semi-structured weights.

    torch has such kernels for linear layers on NVIDIA GPUs of compute capability 8.0 and more, in
    float16 and bfloat16. Convolutions stay dense tensors with zeros.

    Raises:
        ValueError: The masks are not 2:4, no linear layer is pruned, or the kernels do not work
            with the model's device or type.
    """
    structure = masks.structure
    if (structure.block, structure.sparsity) != (4, 0.5):
        raise ValueError(
            "Semi-structured weights are those of structure '2:4', got a ticket of structure "
            f"{structure.name!r}."
        )
    _check_device(device_of(model))
    small = copy.deepcopy(unwrap(model))
    linear = {f"{name}.weight": m for name, m in small.named_modules() if isinstance(m, nn.Linear)}
    pruned = [module for name, module in linear.items() if name in masks]
    if not pruned:
        raise ValueError(
            "The ticket has no pruned linear layer, and torch has kernels for no other."
        )
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
            "torch multiplies semi-structured weights on NVIDIA GPUs only, and the model is on "
            f"{device.type!r}. Move it to one, or use the masked model as it is."
        )
    if (found := torch.cuda.get_device_capability(device)) < CAPABILITY:
        raise ValueError(
            f"Semi-structured kernels need compute capability 8.0, this GPU has "
            f"{'.'.join(map(str, found))}."
        )
