"""Attention with fewer heads than its width would give: what stays when heads are removed.

Modules of ours stand in place of those that cannot do with fewer heads. They take over all that is
theirs, parameters, buffers, children, hooks and attributes, everything but the code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Usual:
    """The usual softmax self-attention in terms of a module's own parts, by name.

    `inward` is one layer for queries, keys and values or three, `outward` the one behind the heads.
    Dropout falls `on_weights` and `on_result`, each an nn.Dropout or a number; None is none. Scores
    are multiplied by the number `scale`, by default head_dim**-0.5; if `causal` no position sees a
    later one.
    """

    inward: tuple[str, ...]
    outward: str
    head_dim: int
    causal: bool
    scale: str | None
    on_weights: str | None = None
    on_result: str | None = None


class HeadAttention(nn.Module):
    """nn.MultiheadAttention with some of its heads: same state, same call, same results.

    It takes over `attention`, whose tensors are already cut to `heads`; nn.MultiheadAttention
    itself insists on as many heads as fill its width. Nested tensors, `add_bias_kv` and
    `add_zero_attn` are refused.
    """

    replaces: str
    num_heads: int
    head_dim: int
    embed_dim: int
    dropout: float
    batch_first: bool
    out_proj: nn.Module

    def __init__(self, attention: nn.MultiheadAttention | HeadAttention, heads: list[int]) -> None:
        super().__init__()
        vars(self).update(vars(attention))
        self.replaces = getattr(attention, "replaces", type(attention).__qualname__)
        self.num_heads = len(heads)
        # Read by nn.TransformerEncoderLayer, whose fused kernel computes the head's width from the
        # number of heads: that must not be used.
        self._qkv_same_embed_dim = False
        # A mask may come with one plane for each head of the original: which, and of how many.
        before = list(range(attention.num_heads))
        self.heads_of = [getattr(attention, "heads_of", before)[head] for head in heads]
        self.heads_before = getattr(attention, "heads_before", attention.num_heads)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As nn.MultiheadAttention.forward; the weights are those of the heads that are left."""
        if query.is_nested:
            raise ValueError("Attention with removed heads takes no nested tensors.")
        if is_causal and attn_mask is None:
            raise ValueError("`is_causal` is a hint about `attn_mask` and needs one, got None.")
        is_batch = query.ndim == 3
        if not is_batch:
            query, key, value = query[None], key[None], value[None]
        elif not self.batch_first:
            query, key, value = (each.transpose(0, 1) for each in (query, key, value))
        q, k, v = self._project(query, key, value)
        bias = self._bias(attn_mask, key_padding_mask, q)
        dropout = self.dropout if self.training else 0.0
        if need_weights:
            scores = q @ k.transpose(-2, -1) / math.sqrt(self.head_dim)
            weights = torch.softmax(scores if bias is None else scores + bias, dim=-1)
            weights = functional.dropout(weights, dropout)
            mixed = weights @ v
        else:
            weights = None
            mixed = functional.scaled_dot_product_attention(q, k, v, bias, dropout)
        result = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if not is_batch:
            return result[0], None if weights is None else weights[0]
        return result if self.batch_first else result.transpose(0, 1), weights

    def _project(self, *inputs: Tensor) -> list[Tensor]:
        """Queries, keys and values: batch x heads x length x head_dim."""
        own: dict[str, Any] = self._parameters
        whole, bias = own["in_proj_weight"], own["in_proj_bias"]
        weights = [own[f"{x}_proj_weight"] for x in "qkv"] if whole is None else whole.chunk(3)
        biases = [None] * 3 if bias is None else bias.chunk(3)
        each = zip(inputs, weights, biases, strict=True)
        return [_by_head(functional.linear(*one), self.head_dim) for one in each]

    def _bias(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor
    ) -> Tensor | None:
        """What both masks add to the scores, broadcasting to batch x heads x queries x keys."""
        bias = None
        if attn_mask is not None:
            bias = _additive(attn_mask, q)
            if bias.ndim == 3:
                bias = bias.unflatten(0, (-1, self.heads_before))[:, self.heads_of]
        if key_padding_mask is not None:
            padding = _additive(key_padding_mask, q).view(len(q), 1, 1, -1)
            bias = padding if bias is None else bias + padding
        return bias


class SelfAttention(nn.Module):
    """The `usual` self-attention in place of a module whose code cannot do with fewer heads.

    Most of those that people write reshape by the width of their input.
    """

    replaces: str
    _usual: Usual

    def __init__(self, module: nn.Module, usual: Usual) -> None:
        super().__init__()
        vars(self).update(vars(module))
        self.replaces = type(module).__qualname__
        self._usual = usual

    def forward(self, x: Tensor) -> Tensor:
        """Self-attention over batch x length x width."""
        usual = self._usual
        made = torch.cat([self.get_submodule(name)(x) for name in usual.inward], dim=-1)
        q, k, v = (_by_head(each, usual.head_dim) for each in made.chunk(3, dim=-1))
        scale = None if usual.scale is None else vars(self)[usual.scale]
        mixed = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=self._dropout(usual.on_weights), is_causal=usual.causal, scale=scale
        )
        result = self.get_submodule(usual.outward)(mixed.transpose(1, 2).flatten(2))
        dropout = self._dropout(usual.on_result)
        return functional.dropout(result, dropout) if dropout else result

    def _dropout(self, name: str | None) -> float:
        """The probability that applies now."""
        if name is None:
            return 0.0
        if (part := self._modules.get(name)) is None:
            return vars(self)[name] if self.training else 0.0
        return float(getattr(part, "p", 0.0)) if part.training else 0.0


def replaced_modules(model: nn.Module) -> dict[str, str]:
    """Where a model has modules of ours in place of its own: the class of each that was there."""
    return {
        name: module.replaces
        for name, module in model.named_modules()
        if isinstance(module, HeadAttention | SelfAttention)
    }


def _by_head(values: Tensor, head_dim: int) -> Tensor:
    return values.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to add: minus infinity where a bool mask says that nothing is seen."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill_(
        mask, -math.inf
    )
