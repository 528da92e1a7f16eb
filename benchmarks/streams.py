"""What residual streams are worth: multiply-adds and time of a transformer without half its units.

python benchmarks/streams.py

A transformer of random weights loses half of the units of every group, once with its residual
stream among them and once without. What is left of a norm over the stream has statistics of the
full width: a LayerNorm is written out for that, of which the fused one of the same width is timed
beside it; an RMSNorm stays fused. Candidates take turns.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import biprune
from biprune.structured.removal import zero_
from timing import interleaved, medians, parser, report

NORMS: dict[str, Callable[[int], nn.Module]] = {"LayerNorm": nn.LayerNorm, "RMSNorm": nn.RMSNorm}
HEADS, WORDS = 12, 1000


class Block(nn.Module):
    """Attention and two layers, each behind a norm and added to the stream."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The stream with what the block adds."""
        n, t, _ = x.shape
        heads = self.qkv(self.first(x)).view(n, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*heads).transpose(1, 2)
        x = x + self.out(mixed.reshape(n, t, -1))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    """Tokens in, numbers for each word out."""

    def __init__(self, width: int, layers: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, width), norm(width)
        self.blocks = nn.Sequential(*(Block(width, norm) for _ in range(layers)))
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """A number for each word at each place."""
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--width", type=int, default=768)
    options.add_argument("--layers", type=int, default=4)
    options.add_argument("--length", type=int, default=128)
    options.add_argument("--rounds", type=int, default=20)
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    report([measure(name, options) for name in NORMS], options)


@torch.no_grad()
def measure(name: str, options: Any) -> dict[str, object]:
    """Multiply-adds left and milliseconds of one model, and those of one of its norms."""
    torch.manual_seed(0)
    model = Transformer(options.width, options.layers, NORMS[name]).eval()
    tokens = torch.randint(WORDS, (2, options.length))
    small = {streams: halved(model, tokens, streams=streams) for streams in (False, True)}
    left = {s: m.certificate.after.macs / m.certificate.before.macs for s, m in small.items()}
    x = torch.randn(2, options.length, options.width // 2)
    fused = NORMS[name](options.width // 2)
    runs = {
        "dense": partial(model, tokens),
        "without": partial(small[False], tokens),
        "with": partial(small[True], tokens),
        "norm": partial(fused, x),
        "full width": partial(written, fused, x),
    }
    seconds = medians(interleaved(runs, options.rounds))
    return {
        "norm": name,
        "MACs left without streams": left[False],
        "MACs left with": left[True],
        "dense, ms": 1e3 * seconds["dense"],
        "without streams, ms": 1e3 * seconds["without"],
        "with, ms": 1e3 * seconds["with"],
        "a norm, ms": 1e3 * seconds["norm"],
        "with statistics of the full width, ms": 1e3 * seconds["full width"],
    }


def halved(model: nn.Module, tokens: Tensor, *, streams: bool) -> Any:
    """The model without every other unit of each group."""
    found = biprune.find_groups(model, tokens, streams=streams)
    keep = {group.name: torch.arange(group.size) % 2 == 0 for group in found.groups}
    masked = copy.deepcopy(model)
    zero_(masked, found.groups, keep)
    return biprune.shrink(masked, found, tokens)


def written(norm: nn.Module, x: Tensor, share: float = 0.5) -> Tensor:
    """What `structured/smaller.py` makes of a norm of which this share of the stream is left."""
    weight: Any = norm.weight
    if isinstance(norm, nn.RMSNorm):
        normed = functional.rms_norm(x * share**0.5, norm.normalized_shape, weight, norm.eps)
        return normed / share**0.5
    mean = x.mean(-1, keepdim=True) * share
    centred = x - mean
    variance = centred.square().mean(-1, keepdim=True) * share + mean.square() * (1 - share)
    return centred * (variance + 1e-5).rsqrt() * weight + norm.bias


if __name__ == "__main__":
    main()
