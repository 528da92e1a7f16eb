"""Small networks of every kind that pruning meets; all take 3 x 8 x 8 images, give 5 numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from biprune.core.groups import Group

CLASSES = 5


def images(batch: int = 2, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


class Residual(nn.Module):
    """A stem, an identity block, and a block whose shortcut is a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv1, self.norm1 = nn.Conv2d(6, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv3, self.norm3 = nn.Conv2d(6, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
        self.shortcut, self.norm4 = nn.Conv2d(6, 8, 1, 2, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem_norm(self.stem(x)))
        inner = torch.relu(self.norm1(self.conv1(x)))
        x = torch.relu(x + self.norm2(self.conv2(inner)))
        x = torch.relu(self.norm3(self.conv3(x)) + self.norm4(self.shortcut(x)))
        return self.head(x.mean(dim=(2, 3)))


class Dense(nn.Module):
    """Each layer reads all before it, as in DenseNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.norm1, self.conv1 = nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3, padding=1)
        self.norm2, self.conv2 = nn.BatchNorm2d(10), nn.Conv2d(10, 4, 3, padding=1)
        self.norm3, self.head = nn.BatchNorm2d(14), nn.Linear(14, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([x, self.conv1(torch.relu(self.norm1(x)))], dim=1)
        x = torch.cat([x, self.conv2(torch.relu(self.norm2(x)))], dim=1)
        return self.head(torch.relu(self.norm3(x)).mean(dim=(2, 3)))


class Inverted(nn.Module):
    """An inverted residual block with a depthwise convolution, as in MobileNet v2."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.expand, self.norm1 = nn.Conv2d(6, 12, 1, bias=False), nn.BatchNorm2d(12)
        self.depthwise = nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False)
        self.norm2 = nn.BatchNorm2d(12)
        self.project, self.norm3 = nn.Conv2d(12, 6, 1, bias=False), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu6(self.norm0(self.stem(x)))
        inner = functional.relu6(self.norm1(self.expand(x)))
        inner = functional.relu6(self.norm2(self.depthwise(inner)))
        x = x + self.norm3(self.project(inner))
        return self.head(x.mean(dim=(2, 3)))


class Grouped(nn.Module):
    """A convolution of two wide groups and one of many narrow ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.wide = nn.Conv2d(8, 12, 3, padding=1, groups=2)
        self.mixed = nn.Conv2d(12, 12, 1)
        self.narrow = nn.Conv2d(12, 8, 3, padding=1, groups=4)
        self.multiplied = nn.Conv2d(8, 16, 3, padding=1, groups=8)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.wide(torch.relu(self.conv1(x))))
        x = torch.relu(self.narrow(torch.relu(self.mixed(x))))
        x = torch.relu(self.multiplied(x))
        return self.head(x.mean(dim=(2, 3)))


def flat() -> nn.Sequential:
    """As VGG: convolutions, pools, and a flattened map before two linear layers."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 10),
        nn.BatchNorm1d(10),
        nn.PReLU(10),
        nn.Linear(10, CLASSES),
    )


class Squeeze(nn.Module):
    """Channels scaled by a sigmoid gate of their means (squeeze and excitation)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.squeeze, self.excite = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.conv2, self.norm2 = nn.Conv2d(8, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.silu(self.norm1(self.conv1(x)))
        gate = torch.relu(self.squeeze(x.mean(dim=(2, 3), keepdim=True)))
        x = x * torch.sigmoid(self.excite(gate))
        return self.head(functional.silu(self.norm2(self.conv2(x))).mean(dim=(2, 3)))


class Tokens(nn.Module):
    """Patches of an image, a class token, positions; blocks; the head of their mean."""

    def __init__(self, *blocks: nn.Module, width: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 5, width) * 0.02)
        self.blocks = nn.Sequential(*blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        return self.head(self.norm(self.blocks(x)).mean(dim=1))


class Attention(nn.Module):
    """Self-attention as it is commonly written: reshaped by the width of the input."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, (width // num_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attn_drop, self.proj_drop = nn.Dropout(0.0), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.num_heads, width // self.num_heads)
        q, k, v = self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        weights = self.attn_drop(((q * self.scale) @ k.transpose(-2, -1)).softmax(dim=-1))
        mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
        return self.proj_drop(self.proj(mixed))


class CausalAttention(nn.Module):
    """Each position sees those before it; reshaped by the width of the input, as in GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n_head, self.c_attn = heads, nn.Linear(width, 3 * width)
        self.c_proj, self.resid_dropout = nn.Linear(width, width), nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.c_attn(x).split(x.shape[-1], dim=2)
        shape = (*x.shape[:2], self.n_head, x.shape[-1] // self.n_head)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.resid_dropout(self.c_proj(mixed.transpose(1, 2).contiguous().view(x.shape)))


class NormedAttention(nn.Module):
    """Three layers and normed queries; the number of heads is all that it goes by."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.to_v, self.to_out = nn.Linear(width, width), nn.Linear(width, width)
        self.q_norm = nn.LayerNorm(width // heads)

    def forward(self, x: Tensor) -> Tensor:
        parts = (layer(x) for layer in (self.to_q, self.to_k, self.to_v))
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(self.q_norm(q), k, v)
        return self.to_out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A pre-norm transformer block with layer scale."""

    def __init__(self, attention: nn.Module, width: int) -> None:
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.fc1, self.fc2 = nn.Linear(width, 16), nn.Linear(16, width)
        self.gamma = nn.Parameter(torch.full((width,), 1e-4))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.gamma * self.attention(self.norm1(x))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


def torch_vit() -> nn.Module:
    layer = nn.TransformerEncoderLayer(12, 4, 16, dropout=0.0, batch_first=True)
    return Tokens(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


def written_vit() -> nn.Module:
    written = [Attention(12, 3), NormedAttention(12, 4), CausalAttention(12, 2)]
    return Tokens(*(Block(attention, 12) for attention in written))


class Padded(nn.Module):
    """A shortcut that is padded with zero channels (option A of He et al.)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.norm2 = nn.Conv2d(4, 6, 3, 2, 1, bias=False), nn.BatchNorm2d(6)
        self.conv3, self.norm3 = nn.Conv2d(6, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        inner = torch.relu(self.norm2(self.conv2(x)))
        short = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        return self.head(torch.relu(short + self.norm3(self.conv3(inner))).mean(dim=(2, 3)))


class Transposed(nn.Module):
    """Down and up again, plain and depthwise, with a skip connection, as in U-Net."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 6, 3, 2, 1)
        self.up, self.norm = nn.ConvTranspose2d(6, 8, 2, 2), nn.InstanceNorm2d(8, affine=True)
        self.each = nn.ConvTranspose2d(8, 8, 3, padding=1, groups=8)
        self.side = nn.Conv2d(3, 4, 1)
        self.join, self.head = nn.Conv2d(12, 6, 3, padding=1), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        up = torch.relu(self.norm(self.up(functional.softplus(self.down(x)))))
        x = torch.cat([torch.relu(self.each(up)), torch.sigmoid(self.side(x))], dim=1)
        return self.head(self.join(x).amax(dim=(2, 3)))


def group_normed() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.GroupNorm(4, 12),
        nn.ReLU(),
        nn.Conv2d(12, 6, 3, padding=1),
        nn.GroupNorm(1, 6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, CLASSES),
    )


class Shuffled(nn.Module):
    """Channels shuffled between groups, sorted, and only then read: nobody follows that."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.conv3, self.head = nn.Conv2d(8, 6, 3), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv1(x))
        x = self.conv2(x.unflatten(1, (2, 4)).transpose(1, 2).flatten(1, 2))
        x = self.conv3(x.sort(dim=1).values)
        return self.head(x.mean(dim=(2, 3)))


class Joined(nn.Module):
    """A wide layer added to two narrow ones side by side: two groups, both written by it."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.left = nn.Conv2d(3, 10, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1)
        self.right, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.wide(x) + torch.cat([self.left(x), self.right(x)], dim=1))
        return self.head(x.mean(dim=(2, 3)))


def normed_late() -> nn.Sequential:
    """Norms behind what keeps a scale: activations, pools, a dropout, a flattened map."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.BatchNorm2d(8),
        nn.Conv2d(8, 6, 3, padding=1),
        nn.PReLU(),
        nn.MaxPool2d(2),
        nn.InstanceNorm2d(6, affine=True),
        nn.Conv2d(6, 4, 3, padding=1),
        nn.LeakyReLU(),
        nn.Dropout(0.1),
        nn.Flatten(),
        nn.BatchNorm1d(64),
        nn.Linear(64, CLASSES),
    )


class Transition(nn.Module):
    """Convolutions and pools before the norms of several branches, as between dense blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.reduce = nn.Conv2d(8, 6, 1, bias=False)
        self.norm1, self.conv1 = nn.BatchNorm2d(6), nn.Conv2d(6, 4, 3, padding=1, bias=False)
        self.norm2, self.head = nn.BatchNorm2d(10), nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.reduce(torch.relu(self.norm0(self.stem(x))))
        x = functional.avg_pool2d(x, 2)
        x = torch.cat([x, self.conv1(torch.relu(self.norm1(x)))], dim=1)
        return self.head(torch.relu(self.norm2(x)).mean(dim=(2, 3)))


class Separable(nn.Module):
    """A depthwise convolution between a layer and the norm that undoes its scale."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.each = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
        self.norm, self.conv2 = nn.BatchNorm2d(8), nn.Conv2d(8, 6, 3, padding=1)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.each(torch.relu(self.conv1(x)))))
        return self.head(torch.relu(self.conv2(x)).mean(dim=(2, 3)))


class Lit(nn.Module):
    """The brightness of the image is added to every channel: data that no layer writes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv1(x) + x.mean(dim=1, keepdim=True))
        return self.head(torch.relu(self.conv2(x)).mean(dim=(2, 3)))


ARCHITECTURES: dict[str, Callable[[], nn.Module]] = {
    "residual": Residual,
    "dense": Dense,
    "inverted": Inverted,
    "grouped": Grouped,
    "flat": flat,
    "squeeze": Squeeze,
    "torch_vit": torch_vit,
    "written_vit": written_vit,
    "padded": Padded,
    "transposed": Transposed,
    "group_normed": group_normed,
    "shuffled": Shuffled,
    "joined": Joined,
    "normed_late": normed_late,
    "transition": Transition,
    "separable": Separable,
    "lit": Lit,
}


def build(name: str, seed: int = 0) -> nn.Module:
    """A network with random weights and random norm statistics, in eval mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ARCHITECTURES[name]()
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.running_mean.normal_(std=0.3)
                    module.running_var.uniform_(0.5, 1.5)
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.normal_(std=0.3)
        return model.eval()


def scale_shares(
    model: nn.Module, groups: Sequence[Group], *inputs: Tensor
) -> dict[tuple[str, str], float]:
    """How far the loss depends on the scale of a layer's filters, by group and weight.

    |sum of theta * g| / sum of |theta * g| over filter and bias, on batch statistics, for the unit
    where it is largest: zero where a norm undoes the scale. One if no filter has a gradient.
    """
    model = copy.deepcopy(model).double().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    outputs = model(*(tensor.double() for tensor in inputs))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.stack([output.sin().sum() for output in outputs]).sum().backward()
    parameters = model.named_parameters()
    products = {n: p.detach() * p.grad for n, p in parameters if p.grad is not None}
    shares = {}
    for group in groups:
        for filters in group.filters:
            own = (filters.tensor, filters.tensor.removesuffix("weight") + "bias")
            parts = [p for p in group.slices if p.tensor in own and p.role != "input"]
            terms = torch.cat([part.of(products[part.tensor]) for part in parts], dim=1)
            terms = terms[terms.abs().sum(dim=1) > 0]
            share = terms.sum(dim=1).abs() / terms.abs().sum(dim=1)
            shares[group.name, filters.tensor] = float(share.max()) if len(share) else 1.0
    return shares
