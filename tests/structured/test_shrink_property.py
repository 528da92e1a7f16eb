"""Random small networks: what is removed is never missed."""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from architectures import CLASSES, scale_shares
from biprune.structured.find import find_groups
from biprune.structured.grouping import Coupling
from biprune.structured.removal import zero_
from biprune.structured.shrink import shrink

SIZE = 6
ACTIVATIONS = {
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,  # f(0) is not 0 in these two
    "softplus": functional.softplus,
    "gelu": functional.gelu,
    "hardswish": functional.hardswish,
    "none": lambda x: x,
}
EXAMPLES = settings(max_examples=20, deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**32 - 1)
KINDS = ["conv", "conv", "residual", "projected", "concat", "depthwise", "grouped", "gate", "up"]
KINDS += ["lit", "scaled"]  # by data that no layer writes
BRIGHT = 1000.0  # inputs that open what is shut on those that `shrink` tries


def random_spec(seed: int) -> dict[str, Any]:
    """A network, drawn evenly: search by parts would stay near the simplest ones."""
    draw = random.Random(seed)
    layers = [
        {
            "kind": draw.choice(KINDS),
            "width": draw.choice([2, 4, 6]),
            "kernel": draw.choice([1, 3]),
            "padding": draw.choice(["zeros", "circular", "reflect"]),
            "bias": draw.random() < 0.5,
            "norm": draw.choice(["batch", "batch", "none", "none", "instance", "group"]),
            "activation": draw.choice(["relu", *sorted(ACTIVATIONS)]),
            "order": draw.choice(["norm first", "norm first", "norm last", "norm behind a pool"]),
            "shut": draw.random() < 0.2,
        }
        for _ in range(draw.randint(1, 4))
    ]
    return {
        "layers": layers,
        "head": draw.choice(["flat", "mean", "hidden"]),
        "inputs": draw.choice([1, 2]),
        "outputs": draw.choice([1, 2]),
    }


class Layer(nn.Module):
    """A convolution with or without a norm, its activation, and what stands around it."""

    def __init__(self, channels: int, spec: dict[str, Any]) -> None:
        super().__init__()
        self.kind, self.order = spec["kind"], spec["order"]
        self.act = ACTIVATIONS[spec["activation"]]
        width = channels if self.kind in ("residual", "depthwise", "gate") else spec["width"]
        kernel, bias = spec["kernel"], spec["bias"]
        groups = {"depthwise": channels, "grouped": 2}.get(self.kind, 1)
        if self.kind == "up":
            self.conv = nn.ConvTranspose2d(channels, width, kernel, padding=kernel // 2, bias=bias)
        else:
            pad = (kernel // 2, 1, groups, bias, spec["padding"])
            self.conv = nn.Conv2d(channels, width, kernel, 1, *pad)
        self.norm = {
            "batch": nn.BatchNorm2d(width),
            "instance": nn.InstanceNorm2d(width, affine=True),
            "group": nn.GroupNorm(2, width),
            "none": nn.Identity(),
        }[spec["norm"]]
        self.other = nn.Conv2d(channels, width, 1)
        self.out = channels + width if self.kind == "concat" else width

        if spec["shut"] and bias:
            nn.init.constant_(self.conv.bias, -50.0)

    def forward(self, x: Tensor, data: Tensor) -> Tensor:
        y = self.conv(x)
        if self.order == "norm first":
            y = self.norm(y)
        else:
            y = self.act(y)
            y = self.norm(y if self.order == "norm last" else functional.avg_pool2d(y, 3, 1, 1))
        if self.kind == "residual":
            return self.act(x + y)
        if self.kind == "projected":
            return self.act(self.other(x) + y)
        if self.kind == "lit":
            return self.act(y + data)
        if self.kind == "scaled":
            return self.act(y * data)
        if self.kind == "concat":
            return torch.cat([x, self.act(y)], dim=1)
        if self.kind == "gate":
            return x * torch.sigmoid(self.act(y).mean(dim=(2, 3), keepdim=True))
        return self.act(y)


class Net(nn.Module):
    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        self.inputs, self.stem = spec["inputs"], nn.Conv2d(3, 4, 3, padding=1)
        self.layers, channels = nn.ModuleList(), 4
        for each in spec["layers"]:
            self.layers.append(Layer(channels, each))
            channels = self.layers[-1].out
        self.flat, self.outputs = spec["head"] != "mean", spec["outputs"]
        self.side = nn.Linear(4, 2)
        inputs = channels * SIZE**2 if self.flat else channels
        self.hidden = nn.Linear(inputs, 7) if spec["head"] == "hidden" else None
        self.head = nn.Linear(7 if self.hidden else inputs, CLASSES)

    def forward(self, x: Tensor, data: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        data = x.mean(dim=1, keepdim=True) if data is None else data
        stem = x = torch.relu(self.stem(x))
        for layer in self.layers:
            x = layer(x, data)
        x = x.flatten(1) if self.flat else x.mean(dim=(2, 3))
        x = self.head(x if self.hidden is None else torch.sigmoid(self.hidden(x)))
        return x if self.outputs == 1 else (x, self.side(stem.amax(dim=(2, 3))))


def images(seed: int, batch: int = 2, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, channels, SIZE, SIZE, generator=generator)


def inputs_of(model: nn.Module, seed: int, batch: int = 2) -> tuple[Tensor, ...]:
    x = images(seed, batch)
    return (x, images(seed + 1, batch, channels=1)) if model.inputs == 2 else (x,)


def build(seed: int) -> nn.Module:
    spec = random_spec(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Net(spec).eval()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.3)
                nn.init.uniform_(module.running_var, 0.5, 1.5)
            if isinstance(module, nn.BatchNorm2d | nn.InstanceNorm2d | nn.GroupNorm):
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
        return model


def outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    found = model(*inputs)
    return list(found) if isinstance(found, tuple) else [found]


def check_same(model: nn.Module, small: nn.Module) -> None:
    """Outputs on fresh inputs, in both precisions; and the small model takes a training step."""
    with torch.no_grad():
        inputs = inputs_of(model, 101, batch=5)
        for one, other in zip(outputs(model, inputs), outputs(small, inputs), strict=True):
            torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4)
        for scale in (1.0, BRIGHT):
            inputs = tuple(t.double() * scale for t in inputs_of(model, 102, batch=5))
            found = [outputs(copy.deepcopy(m).double(), inputs) for m in (model, small)]
            for one, other in zip(*found, strict=True):
                assert float((one - other).abs().max()) <= 1e-10 * float(one.abs().max())
    trained = copy.deepcopy(small).train()
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    torch.stack(
        [o.square().mean() for o in outputs(trained, inputs_of(model, 103))]
    ).sum().backward()
    optimizer.step()
    assert all(bool(p.isfinite().all()) for p in trained.parameters())


def half(size: int, generator: torch.Generator) -> Tensor:
    keep = torch.rand(size, generator=generator) < 0.5
    keep[torch.randint(size, (1,), generator=generator)] = True
    return keep


def taken(found: Coupling, keep: dict[str, Tensor], tensor: str, dim: int) -> int:
    """How many indices of a parameter's dimension the groups take away."""
    return sum(
        int((~keep[group.name]).sum()) * part.places.shape[1]
        for group in found.groups
        for part in group.slices
        if (part.tensor, part.dim) == (tensor, dim)
    )


def check_gates(model: nn.Module, found: Coupling) -> None:
    """No gate is where a norm undoes the scale."""
    shares = scale_shares(model, found.groups, *inputs_of(model, 104, batch=8))
    for group in found.groups:
        own = [part.tensor for part in group.filters if part.gated]
        assert all(shares[group.name, tensor] > 1e-3 for tensor in own), own


def test_groups_are_removed_to_the_last_unit_and_not_missed() -> None:
    numbers: list[int] = []

    @EXAMPLES
    @given(seed=SEEDS)
    def check(seed: int) -> None:
        model = build(seed)
        found = find_groups(model, inputs_of(model, seed))
        numbers.append(len(found.groups))
        check_gates(model, found)
        generator = torch.Generator().manual_seed(seed)
        keep = {group.name: half(group.size, generator) for group in found.groups}
        zero_(model, found.groups, keep)
        small = shrink(model, found, inputs_of(model, seed), seed=seed)
        check_same(model, small)
        removed = sum(int((~units).sum()) for units in keep.values())
        more = small.certificate.units_removed - removed  # units that others left without a use
        assert more >= 0
        cut = dict(small.named_parameters())
        for name, parameter in model.named_parameters():
            for dim, length in enumerate(parameter.shape):
                left = length - taken(found, keep, name, dim)
                assert cut[name].shape[dim] == left or (more and cut[name].shape[dim] < left)

    check()
    assert len(numbers) >= 15
    assert sum(number > 0 for number in numbers) >= 0.9 * len(numbers)
    assert sum(numbers) >= 2 * len(numbers)


def cut_convolutions(model: nn.Module, dim: int, seed: int) -> None:
    """Zero random filters or input channels of each convolution, as those structures do."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if type(module) is nn.Conv2d and (dim == 0 or module.groups == 1):
                gone = ~half(module.weight.shape[dim], generator)
                module.weight.movedim(dim, 0)[gone] = 0


def test_of_filters_and_channels_what_can_go_is_not_missed() -> None:
    removed: dict[int, list[int]] = {0: [], 1: []}

    @EXAMPLES
    @given(seed=SEEDS, dim=st.sampled_from([0, 1]))
    def check(seed: int, dim: int) -> None:
        model = build(seed)
        cut_convolutions(model, dim, seed)
        small = shrink(model, None, inputs_of(model, seed), seed=seed)
        check_same(model, small)
        removed[dim].append(small.certificate.units_removed)

    check()
    for dim, numbers in removed.items():
        assert sum(number > 0 for number in numbers) >= 3, dim
