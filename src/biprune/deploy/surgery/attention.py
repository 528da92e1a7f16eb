"""Attention with fewer heads than its width would give: what stays when heads are removed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

_BEHIND = ("proj", "out", "resid")  # in the name of a dropout behind the heads, not on the weights


class HeadAttention(nn.Module):
    """nn.MultiheadAttention with some of its heads: same state, same call, same results.

    It takes over the tensors of `attention`, already cut to `heads`; nn.MultiheadAttention itself
    insists on as many heads as fill its width. Nested tensors, `add_bias_kv` and `add_zero_attn`
    are refused.
    """

    # Read by nn.TransformerEncoderLayer, whose fused kernel computes the head's width from the
    # number of heads: that must not be used.
    _qkv_same_embed_dim = False

    def __init__(self, attention: nn.MultiheadAttention | HeadAttention, heads: list[int]) -> None:
        super().__init__()
        self.num_heads = len(heads)
        self.head_dim = attention.head_dim
        self.embed_dim = attention.embed_dim
        self.dropout = attention.dropout
        self.batch_first = attention.batch_first
        # A mask may come with one plane for each head of the original: which, and of how many.
        before = list(range(attention.num_heads))
        self.heads_of = [getattr(attention, "heads_of", before)[head] for head in heads]
        self.heads_before = getattr(attention, "heads_before", attention.num_heads)
        for name, parameter in attention._parameters.items():
            self.register_parameter(name, parameter)
        self.out_proj = attention.out_proj
        self.train(attention.training)

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
    """The usual softmax self-attention from the parts of a module that cannot do with fewer heads.

    Most of those that people write reshape by the width of their input. The parts keep their names:
    `inward` is one layer for queries, keys and values or three, `outward` the one behind the heads.
    With `causal` no position sees a later one.
    """

    def __init__(
        self, module: nn.Module, inward: list[str], outward: str, head_dim: int, causal: bool
    ) -> None:
        super().__init__()
        for name, child in module.named_children():
            self.add_module(name, child)
        drops = {n: child for n, child in module.named_children() if isinstance(child, nn.Dropout)}
        self.inward, self.outward = inward, outward
        self.after = [name for name in drops if any(p in name for p in _BEHIND)]
        self.dropout = sum(drop.p for name, drop in drops.items() if name not in self.after)
        width = sum(len(module.get_parameter(f"{name}.weight")) for name in inward) // 3
        self.num_heads, self.head_dim, self.causal = width // head_dim, head_dim, causal
        scale = getattr(module, "scale", None)
        self.scale = scale if isinstance(scale, float) else head_dim**-0.5
        self.train(module.training)

    def forward(self, x: Tensor, *masks: object, **options: object) -> Tensor:
        """Self-attention over batch x length x width; masks are refused."""
        if any(each is not None for each in (*masks, *options.values())):
            raise ValueError("Attention with removed heads takes its input alone, without masks.")
        made = torch.cat([self.get_submodule(name)(x) for name in self.inward], dim=-1)
        q, k, v = (_by_head(each, self.head_dim) for each in made.chunk(3, dim=-1))
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(
            q, k, v, dropout_p=dropout, is_causal=self.causal, scale=self.scale
        )
        result = self.get_submodule(self.outward)(mixed.transpose(1, 2).flatten(2))
        for name in self.after:
            result = self.get_submodule(name)(result)
        return result


def _by_head(values: Tensor, head_dim: int) -> Tensor:
    return values.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    """A mask as numbers to add: minus infinity where a bool mask says that nothing is seen."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill_(
        mask, -math.inf
    )
