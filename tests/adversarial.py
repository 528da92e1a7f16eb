"""Small modules made to mislead: whoever takes away a unit of them must know what they do.

Each takes what `EXAMPLES` says, or images of 3 x 8 x 8. The first are reproductions of what other
engines failed on: no end, an error, or a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 5


class GroupedQueries(nn.Module):
    """Two query heads that share one key head, turned by a rotary embedding without a table."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
        self.q, self.k, self.o = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        n, t, _ = x.shape
        q = rotated(self.q(x).view(n, t, 2, 4).transpose(1, 2))
        k = rotated(self.k(x).view(n, t, 1, 4).transpose(1, 2))
        k = k[:, :, None].expand(n, 1, 2, t, 4).reshape(n, 2, t, 4)
        return self.head(self.o((q @ k.transpose(2, 3) @ k).transpose(1, 2).reshape(n, t, 8)))


def rotated(h: Tensor) -> Tensor:
    return h + torch.cat((-h[..., 2:], h[..., :2]), -1)


class ShuffleUnit(nn.Module):
    """Half of the channels pass, and both halves are shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.i, self.a, self.b = nn.Conv2d(3, 8, 1), nn.Conv2d(4, 4, 1), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.i(x).chunk(2, 1)
        x = torch.cat((left, self.a(right)), 1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)
        left, right = x.chunk(2, 1)
        return self.b(torch.cat((left, self.a(right)), 1))


class Rotary(nn.Module):
    """Halves of a vector exchanged and added."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.q, self.o = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        q = self.q(self.stem(x))
        a, b = q.chunk(2, -1)
        return self.o(q + torch.cat((-b, a), -1))


class Layers(nn.Module):
    """Two layers that share one table of rotations, with whole heads and fewer keys."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 16), nn.Linear(16, CLASSES)
        self.blocks = nn.ModuleList(Turned() for _ in range(2))
        self.register_buffer("inv_freq", 10.0 ** -torch.arange(2.0), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        angles = torch.arange(tokens.shape[1])[:, None].to(x.dtype) * self.inv_freq
        angles = torch.cat((angles, angles), -1)
        for block in self.blocks:
            x = x + block(functional.rms_norm(x, (16,)), angles.cos(), angles.sin())
        return self.head(x.mean(1))


class Turned(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(16, 16, bias=False), nn.Linear(16, 8, bias=False)
        self.v, self.o = nn.Linear(16, 8, bias=False), nn.Linear(16, 16, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n, t, _ = x.shape
        q = turned(self.q(x).view(n, t, -1, 4).transpose(1, 2), cos, sin)
        k = turned(self.k(x).view(n, t, -1, 4).transpose(1, 2), cos, sin)
        v = self.v(x).view(n, t, -1, 4).transpose(1, 2)
        k, v = (each.repeat_interleave(2, 1) for each in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(mixed.transpose(1, 2).reshape(n, t, -1))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + torch.cat((-x[..., 2:], x[..., :2]), -1) * sin


class Biased(nn.Module):
    """Two layers of attention that share a learned bias by position, one number for each head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.bias = nn.Embedding(11, 12), nn.Embedding(7, 3)
        self.blocks = nn.ModuleList(Scored() for _ in range(2))
        self.head = nn.Linear(12, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x, places = self.embed(tokens), torch.arange(tokens.shape[1])
        bias = self.bias((places[:, None] - places).clamp(-3, 3) + 3).permute(2, 0, 1)[None]
        for block in self.blocks:
            x = x + block(x, bias)
        return self.head(x.amax(1))


class Scored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        n, t, _ = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, 3, 4).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / 2 + bias
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Images(nn.Module):
    """A convolution, something on its channels, and a head: what `between` does is the matter."""

    def __init__(self, between: Callable[[Tensor], Tensor], channels: int = 8) -> None:
        super().__init__()
        self.conv, self.between = nn.Conv2d(3, 8, 3, padding=1), between
        self.next, self.head = nn.Conv2d(channels, 6, 1), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.next(self.between(self.conv(x)))
        return self.head(torch.tanh(x).mean((2, 3)))


def view_then_relu(x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).relu().transpose(1, 2).reshape(n, c, h, w)


def in_place(x: Tensor) -> Tensor:
    x = x.clone()
    x[:, :, 0] = 0.0
    x.mul_(2).relu_()
    x[:, 2:4] += 1
    return x


def patches(x: Tensor) -> Tensor:
    return functional.fold(functional.unfold(x, 2, stride=2), (8, 8), 2, stride=2)


def padded(x: Tensor) -> Tensor:
    return functional.pad(x, (1, 1, 1, 1, 2, 2))


def normed_by_hand(x: Tensor) -> Tensor:
    return x / x.square().sum(1, keepdim=True).add(1e-6).sqrt()


def statistics(x: Tensor) -> Tensor:
    """The mean and the maximum over channels as a gate, as in CBAM."""
    return x * torch.sigmoid(x.mean(1, keepdim=True) + x.amax(1, keepdim=True))


BETWEEN: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "sigmoid": (torch.sigmoid, 8),
    "sigmoid summed": (lambda x: x * torch.sigmoid(x).sum(1, keepdim=True), 8),
    "relu summed": (lambda x: x * torch.relu(x).sum(1, keepdim=True), 8),
    "cos": (torch.cos, 8),
    "log": (lambda x: torch.log(x.square()), 8),
    "reciprocal": (lambda x: 1 / (x.square() + 1), 8),
    "softmax": (lambda x: x.softmax(1), 8),
    "maximum": (statistics, 8),
    "sorted": (lambda x: x.sort(1).values, 8),
    "cumulated": (lambda x: x.cumsum(1), 8),
    "rolled": (lambda x: x.roll(1, 1), 8),
    "flipped": (lambda x: x.flip(1), 8),
    "viewed": (view_then_relu, 8),
    "in place": (in_place, 8),
    "padded": (padded, 12),
    "normed by hand": (normed_by_hand, 8),
    "pixel shuffle": (lambda x: functional.pixel_shuffle(x, 2), 2),
    "pixel unshuffle": (lambda x: functional.pixel_unshuffle(x, 2), 32),
    "channel shuffle": (lambda x: nn.ChannelShuffle(4)(x), 8),
    "glu": (lambda x: functional.glu(x, 1), 4),
    "split by sizes": (
        lambda x: torch.cat([p * (i + 1) for i, p in enumerate(x.split([3, 5], 1))], 1),
        8,
    ),
    "steps": (lambda x: torch.cat([x[:, 1::2], x[:, ::2]], 1), 8),
    "picked": (lambda x: x[:, torch.tensor([3, 1, 2, 0, 7, 6, 5, 4])], 8),
    "gathered": (lambda x: x.gather(3, x.argsort(3)), 8),
    "scattered": (lambda x: torch.zeros_like(x).scatter(2, x.argsort(2), x), 8),
    "places": (lambda x: x * (x > 9).nonzero().sum(), 8),
    "one channel": (lambda x: x * x[:, 2:3], 8),
    "outer": (lambda x: (x[:, :, None] * x[:, None]).flatten(1, 2)[:, :8], 8),
    "einsum": (lambda x: torch.einsum("nchw,ndhw->nchw", x, x.relu()), 8),
    "gram": (lambda x: torch.einsum("nchw,ndhw->ncd", x, x).softmax(-1)[..., None] * 1.0, 8),
    "unfold": (patches, 8),
    "repeated": (lambda x: x.repeat(1, 2, 1, 1), 16),
    "interleaved": (lambda x: x.repeat_interleave(2, 1), 16),
    "masked": (lambda x: x.masked_fill(x < 0, 0.5), 8),
    "where": (lambda x: torch.where(x > 0, x, x * 0.1), 8),
    "halves multiplied": (lambda x: x[:, :4] * x[:, 4:], 4),
    "stacked": (lambda x: torch.stack([x, x.relu()], 2).flatten(1, 2), 16),
    "fourier": (lambda x: torch.fft.rfft2(x).abs(), 8),
    "normalized": (lambda x: functional.normalize(x, dim=1), 8),
    "standardized": (lambda x: (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1), 8),
    "diagonal": (lambda x: x @ torch.eye(8), 8),
    "to numbers and back": (
        lambda x: x * x.detach().double().relu().sum(1, keepdim=True).float(),
        8,
    ),
}


class Shared(nn.Module):
    """One convolution at two places, a tied readout, a PReLU, and a scale of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.twice = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 3, padding=1)
        self.act, self.scale = nn.PReLU(6), nn.Parameter(torch.rand(6, 1, 1) + 0.5)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.act(self.stem(x))
        x = self.twice(self.twice(x) * self.scale)
        return {"logits": self.head(x.mean((2, 3))), "size": x.new_tensor(1.0) + 0 * x.sum()}


class Tied(nn.Module):
    """Words in and words out by one matrix, two kinds of output, a cache among them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.up, self.down = nn.Embedding(9, 6), nn.Linear(6, 10), nn.Linear(10, 6)
        self.norm = nn.LayerNorm(6)

    def forward(self, tokens: Tensor) -> tuple[Tensor, object]:
        x = self.embed(tokens)
        hidden = functional.gelu(self.up(self.norm(x)))
        x = x + self.down(hidden)
        return functional.linear(x, self.embed.weight), Cache(hidden)


class Experts(nn.Module):
    """Each token goes to two of three experts, so that how many each gets depends on numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.router = nn.Linear(6, 8), nn.Linear(8, 3)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 6), nn.GELU(), nn.Linear(6, 8)) for _ in range(3)
        )
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.stem(x).flatten(0, 1)
        shares, chosen = self.router(rows).softmax(-1).topk(2, -1)
        total, first = torch.zeros_like(rows), torch.zeros_like(rows)
        for place, expert in enumerate(self.experts):
            row, rank = torch.where(chosen == place)
            total.index_add_(0, row, expert(rows[row]) * shares[row, rank, None])
            mask = chosen[:, 0] == place
            first[mask] = expert(rows[mask])
        return self.head((total + first).view(*x.shape[:2], -1))


class Attended(nn.Module):
    """Attention of torch's own, with a number of tokens and of samples that are free."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, CLASSES)
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + self.attention(x, x, x, need_weights=False)[0])


class Queries(nn.Module):
    """Four query heads that share one key head, or two, in one of the ways that this is written."""

    def __init__(self, keys: int, how: str) -> None:
        super().__init__()
        self.keys, self.how = keys, how
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, CLASSES)
        self.q, self.o = nn.Linear(8, 16), nn.Linear(16, 8)
        self.k, self.v = nn.Linear(8, 4 * keys), nn.Linear(8, 4 * keys)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        n, t, _ = x.shape
        q, k, v = (layer(x).view(n, t, -1, 4).transpose(1, 2) for layer in (self.q, self.k, self.v))
        shared = 4 // self.keys
        if self.how == "expand":
            k, v = (
                each[:, :, None].expand(n, self.keys, shared, t, 4).reshape(n, 4, t, 4)
                for each in (k, v)
            )
        if self.how == "interleave":
            k, v = (each.repeat_interleave(shared, 1) for each in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, enable_gqa=self.how == "kernel")
        return self.head(x + self.o(mixed.transpose(1, 2).reshape(n, t, -1)))


class Normed(nn.Module):
    """Weights with a norm of their own: rows of zeros have none."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)
        self.mid = nn.utils.parametrizations.weight_norm(nn.Linear(8, 7))
        self.head = nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.mid(torch.relu(self.fc(x)))))


class Cache:
    def __init__(self, kept: Tensor) -> None:
        self.kept = kept


class Readout(nn.Module):
    """A layer that holds the matrix of another as its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mid, self.head = nn.Embedding(9, 6), nn.Linear(6, 6), nn.Linear(6, 9)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        return self.head(x + torch.relu(self.mid(x)))


class ByNumbers(nn.Module):
    """Goes by what it computes: no graph of it holds for other inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc1(x))
        if float(x.sum()) > 1e9:
            return self.fc3(x)
        return self.fc3(torch.relu(self.fc2(x)))


class Keywords(nn.Module):
    """Two inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(6, 8), nn.Linear(4, 8), nn.Linear(8, CLASSES)

    def forward(self, left: Tensor, *, right: Tensor) -> Tensor:
        return self.head(torch.tanh(self.a(left) * self.b(right)))


class Recurrent(nn.Module):
    """A layer that no rule knows, between two that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.lstm = nn.Linear(6, 8), nn.LSTM(8, 7, batch_first=True)
        self.mid, self.head = nn.Linear(7, 9), nn.Linear(9, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.mid(self.lstm(torch.relu(self.fc(x)))[0])).mean(1))


def _tokens(top: int) -> Tensor:
    return torch.randint(0, top, (3, 6), generator=torch.Generator().manual_seed(0))


def _normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


MODULES: dict[str, tuple[Callable[[], nn.Module], object]] = {
    "grouped queries": (GroupedQueries, _normal(2, 5, 8)),
    "shuffle unit": (ShuffleUnit, _normal(2, 3, 4, 4)),
    "rotary": (Rotary, _normal(2, 8)),
    "layers": (Layers, _tokens(11)),
    "biased": (Biased, _tokens(11)),
    "shared": (Shared, _normal(2, 3, 8, 8)),
    "tied": (Tied, _tokens(9)),
    "readout": (Readout, _tokens(9)),
    "by numbers": (ByNumbers, _normal(3, 6)),
    "keywords": (Keywords, {"left": _normal(3, 6), "right": _normal(3, 4)}),
    "experts": (Experts, _normal(3, 4, 6)),
    "attended": (Attended, _tokens(11)),
    **{
        f"queries of {keys} by {how}": (lambda k=keys, h=how: Queries(k, h), _tokens(11))
        for keys in (1, 2)
        for how in ("expand", "interleave", "kernel")
    },
    "weight norm": (Normed, _normal(3, 6)),
    "recurrent": (Recurrent, _normal(3, 5, 6)),
    **{
        name: (lambda b=between, c=channels: Images(b, c), _normal(2, 3, 8, 8))
        for name, (between, channels) in BETWEEN.items()
    },
}


def build(name: str, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return MODULES[name][0]().eval()
