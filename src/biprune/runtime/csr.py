"""Linear layers without their zeros: weights as compressed sparse rows, whose kernels skip them."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn


class CsrLinear(nn.Module):
    """A linear layer with a sparse weight, for inference on the CPU."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        dense = layer.weight.detach()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            rows = dense.to_sparse_csr()
            # Half the default's indices, and what the kernel takes without a conversion.
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
        """x W^T as (W x^T)^T: the transpose of a sparse tensor is refused in inference mode."""
        columns = inputs.flatten(0, -2).t()
        outputs = (self.weight @ columns).t().unflatten(0, inputs.shape[:-1])
        return outputs if self.bias is None else outputs + self.bias


def with_csr(model: nn.Module) -> nn.Module | None:
    """A copy whose linear layers with zeros are sparse, or None if it has none.

    Convolutions stay dense, since torch has no sparse ones. So do the linear layers of attention
    and of nn.TransformerEncoderLayer, which reads their weights past the layers.
    """
    found = copy.deepcopy(model)
    replaced = 0
    for parent in list(found.modules()):
        if isinstance(parent, nn.TransformerEncoderLayer):
            continue
        for name, layer in parent.named_children():
            # Exactly this class: attention's own subclass is read past its forward as well.
            if (
                type(layer) is nn.Linear
                and torch.count_nonzero(layer.weight) < layer.weight.numel()
            ):
                setattr(parent, name, CsrLinear(layer))
                replaced += 1
    return found.eval() if replaced else None
