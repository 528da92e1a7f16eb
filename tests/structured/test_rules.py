"""What each class of operation does to the units that run through it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import adversarial
from biprune.structured.find import find_groups
from biprune.structured.removal import zero_
from biprune.structured.shrink import shrink

# Units that are left of the 8 channels before the operation, or why there are none.
CHANNELS: dict[str, int | str] = {
    "sigmoid": 8,
    "sigmoid summed": "not zero, and is added up without weights",
    "relu summed": 8,
    "cos": 8,
    "log": "not finite",
    "reciprocal": 8,
    "softmax": "softmax is over all of it",
    "maximum": "its mean is over all of it",
    "sorted": "sort is over all of it",
    "cumulated": "cumsum is over all of it",
    "rolled": "it is shifted along",
    "flipped": 8,
    "viewed": 4,
    "in place": "part of it is replaced",
    "padded": 8,
    "normed by hand": 8,
    "pixel shuffle": 2,
    "pixel unshuffle": 8,
    "channel shuffle": 8,
    "glu": 4,
    "split by sizes": 8,
    "steps": 8,
    "picked": "it is picked from by index",
    "gathered": 8,
    "scattered": 8,
    "places": "its places are counted",
    "one channel": 7,
    "outer": "it can only go as a whole",
    "einsum": 8,
    "gram": "softmax is over all of it",
    "unfold": "col2im, which is not known",
    "repeated": 8,
    "interleaved": 8,
    "masked": 8,
    "where": 8,
    "halves multiplied": 4,
    "stacked": 8,
    "fourier": "fft_rfft2, which is not known",
    "normalized": 8,
    "standardized": "its mean is over all of it",
    "diagonal": 8,
    "to numbers and back": 8,
}


def test_every_operation_between_has_its_expectation() -> None:
    assert CHANNELS.keys() == adversarial.BETWEEN.keys()


@pytest.mark.parametrize("name", CHANNELS)
def test_channels_behind(name: str) -> None:
    found = find_groups(adversarial.build(name), torch.zeros(2, 3, 8, 8))
    expected = CHANNELS[name]
    if isinstance(expected, int):
        sizes = {group.name: group.size for group in found.groups}
        assert sizes["conv.weight"] == expected
    else:
        assert expected in found.left_out["conv.weight"]


class Rows(nn.Module):
    """Features of a linear layer, through something, to a head; a second one if it is wanted."""

    def __init__(self, between: object, **modules: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.fc, self.head, self.between = nn.Linear(6, 8), nn.Linear(8, 3), between
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.between(self, self.fc(x)))  # pyright: ignore[reportCallIssue]


def own(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.rand(*shape) + 0.5)


# What is between, the modules it needs, and what of their parameters goes with a unit.
TIED = {
    "bias of one's own": (lambda m, x: x + m.b, {"b": own(8)}, {("b", 0)}),
    "scale of another shape": (lambda m, x: x * m.b[0], {"b": own(1, 8)}, {("b", 1)}),
    "matmul": (lambda m, x: x @ m.w, {"w": own(8, 8)}, {("w", 0)}),
    "mm behind a transpose": (lambda m, x: x.mm(m.w.t()), {"w": own(8, 8)}, {("w", 1)}),
    "addmm": (lambda m, x: torch.addmm(m.b, x, m.w), {"w": own(8, 8), "b": own(8)}, {("w", 0)}),
    "bmm": (
        lambda m, x: torch.bmm(x[None], m.w)[0],
        {"w": own(1, 8, 8)},
        {("w", 1)},
    ),
    "einsum": (
        lambda m, x: torch.einsum("...i,oi->...o", x, m.w),
        {"w": own(8, 8)},
        {("w", 1)},
    ),
    "batch norm": (
        lambda m, x: m.n(x),
        {"n": nn.BatchNorm1d(8)},
        {("n.weight", 0), ("n.bias", 0)},
    ),
    "prelu": (lambda m, x: m.p(x), {"p": nn.PReLU(8)}, {("p.weight", 0)}),
    "prelu of one": (lambda m, x: m.p(x), {"p": nn.PReLU()}, set()),
    "stack and sum": (lambda m, x: torch.stack([x, x * m.b]).sum(0), {"b": own(8)}, {("b", 0)}),
    "zeros": (lambda m, x: x.new_zeros(8) + x * m.b, {"b": own(8)}, {("b", 0)}),
    "expand": (lambda m, x: x * m.b.expand(5, 8)[0], {"b": own(8)}, {("b", 0)}),
    "where": (lambda m, x: torch.where(x > m.b, x, m.b), {"b": own(8)}, {("b", 0)}),
    "addcmul": (lambda m, x: torch.addcmul(x, x, m.b), {"b": own(8)}, {("b", 0)}),
}


@pytest.mark.parametrize("name", TIED)
def test_what_goes_with_a_unit(name: str) -> None:
    between, modules, expected = TIED[name]
    found = find_groups(Rows(between, **modules), torch.zeros(3, 6))
    group = next(group for group in found.groups if group.name == "fc.weight")
    slices = {(part.tensor, part.dim) for part in group.slices}
    owned = {("fc.weight", 0), ("fc.bias", 0), ("head.weight", 1)}
    assert {key for key in slices if key not in owned} == expected
    assert all(torch.equal(part.places, torch.arange(8)[:, None]) for part in group.slices)


WHOLE = {
    "experts": {"stem.weight": 8, **{f"experts.{i}.0.weight": 6 for i in range(3)}},
    "attended": {"embed.weight": 8, "attention.in_proj_weight": 4},
    "weight norm": {"fc.weight": 8},
}


@pytest.mark.parametrize("name", WHOLE)
def test_all_groups_of(name: str) -> None:
    found = find_groups(adversarial.build(name), adversarial.MODULES[name][1])
    assert {group.name: group.size for group in found.groups} == WHOLE[name]


def test_rows_of_weights_with_norms_of_their_own_stay() -> None:
    found = find_groups(adversarial.build("weight norm"), torch.zeros(3, 6))
    assert "not finite" in found.left_out["mid.parametrizations.weight.original1"]


def test_heads_whole_or_by_width() -> None:
    model, tokens = adversarial.build("layers"), adversarial.MODULES["layers"][1]
    heads = find_groups(model, tokens)  # pyright: ignore[reportArgumentType]
    assert [group.size for group in heads.groups] == [2, 2]  # key-value heads with their queries
    parts = {part.tensor: part.places.tolist() for part in heads.groups[0].slices}
    assert parts["blocks.0.q.weight"][1] == [8, 9, 10, 11, 12, 13, 14, 15]
    assert parts["blocks.0.k.weight"][1] == [4, 5, 6, 7]
    width = find_groups(model, tokens, attention="width")  # pyright: ignore[reportArgumentType]
    sizes = {group.name: group.size for group in width.groups}
    assert sizes == {
        f"blocks.{block}.{layer}.weight": size
        for block in (0, 1)
        for layer, size in (("q", 2), ("v", 4))
    }
    turned = {part.tensor: part.places.tolist() for part in width.groups[0].slices}
    assert turned["blocks.0.q.weight"][0] == [0, 2, 4, 6, 8, 10, 12, 14]  # pairs, of all heads
    assert "inv_freq" not in turned


@pytest.mark.parametrize("how", ["expand", "interleave", "kernel"])
@pytest.mark.parametrize("keys", [1, 2])
def test_query_heads_go_alone_where_that_is_asked_for_or_nothing_else_can(
    keys: int, how: str
) -> None:
    name = f"queries of {keys} by {how}"
    model, tokens = adversarial.build(name), adversarial.MODULES[name][1]
    alone = {"embed.weight": 8, "q.weight": 4}
    for attention, expected in (
        ("queries", alone),
        ("heads", alone if keys == 1 else {"embed.weight": 8, "q.weight": 2}),
    ):
        found = find_groups(model, tokens, attention=attention)  # pyright: ignore
        assert {group.name: group.size for group in found.groups} == expected


def test_a_batch_of_one_size_is_tried_in_that_size() -> None:
    class ThreeSamples(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.fc(x) * torch.arange(3.0)[:, None])

    found = find_groups(ThreeSamples(), torch.zeros(3, 6))
    assert {group.name: group.size for group in found.groups} == {"fc.weight": 8}


class Partial(nn.Module):
    """Attention whose heads are turned by position in one half, and left as they are in the other.

    The keys are one head, repeated for all queries.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.head = nn.Linear(6, 8), nn.Linear(16, 3)
        self.q, self.k, self.v = nn.Linear(8, 16), nn.Linear(8, 4), nn.Linear(8, 16)
        self.register_buffer("angles", torch.rand(5, 2))

    def turned(self, x: Tensor) -> Tensor:
        part, rest = x[..., :2], x[..., 2:]
        turned = torch.stack([-part[..., 1], part[..., 0]], -1)
        return torch.cat([part * self.angles.cos() + turned * self.angles.sin(), rest], -1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.fc(x))
        q, v = (f(x).unflatten(2, (4, 4)).transpose(1, 2) for f in (self.q, self.v))
        k = self.k(x)[:, None].repeat_interleave(4, 1)
        mixed = (self.turned(q) @ self.turned(k).transpose(2, 3)).softmax(-1) @ v
        return self.head(mixed.transpose(1, 2).flatten(2))


def test_heads_that_are_turned_in_part_and_share_one_key() -> None:
    model, x = Partial(), torch.randn(2, 5, 6)
    found = find_groups(model, x)
    sizes = {group.name: group.size for group in found.groups}
    assert sizes == {"fc.weight": 8, "q.weight": 4}
    queries = next(group for group in found.groups if group.name == "q.weight")
    places = {part.tensor: part.places.tolist() for part in queries.slices}
    assert places["q.weight"] == torch.arange(16).view(4, 4).tolist()
    assert places.keys() == {"q.weight", "q.bias", "v.weight", "v.bias", "head.weight"}
    keep = {group.name: torch.arange(group.size) % 2 == 0 for group in found.groups}
    zero_(model, found.groups, keep)
    certificate = shrink(model, found, x).certificate
    assert certificate.max_error < 1e-12  # pyright: ignore[reportAttributeAccessIssue]


def test_tables_that_layers_share_do_not_tie_them() -> None:
    model, tokens = adversarial.build("biased"), adversarial.MODULES["biased"][1]
    found = find_groups(model, tokens)  # pyright: ignore[reportArgumentType]
    heads = {group.name: group.size for group in found.groups if group.size == 3}
    assert heads == {"blocks.0.qkv.weight": 3, "blocks.1.qkv.weight": 3}
    assert found.left_out["bias.weight"] == "it is a table that several layers share"


def test_residual_streams_are_groups_if_wanted() -> None:
    model, tokens = adversarial.build("layers"), adversarial.MODULES["layers"][1]
    found = find_groups(model, tokens, streams=True)  # pyright: ignore[reportArgumentType]
    assert next(group for group in found.groups if group.name == "embed.weight").size == 16
    without = find_groups(model, tokens)  # pyright: ignore[reportArgumentType]
    assert "norm whose statistics are over all of it" in without.left_out["embed.weight"]


def test_a_token_bias_that_writes_into_masked_channels_freezes_the_stream() -> None:
    """As in MLP-Mixer: zero channels do not stay zero, so that a norm over them sees them."""

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.mix = nn.Linear(6, 8), nn.Linear(5, 5)
            self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.embed(x)
            x = x + self.mix(x.transpose(1, 2)).transpose(1, 2)
            return self.head(self.norm(x).mean(1))

    found = find_groups(Mixer(), torch.zeros(2, 5, 6), streams=True)
    assert "not zero" in found.left_out["embed.weight"]


def test_an_unknown_operation_freezes_what_it_reads_and_nothing_else() -> None:
    model, example = adversarial.build("recurrent"), adversarial.MODULES["recurrent"][1]
    found = find_groups(model, example)  # pyright: ignore[reportArgumentType]
    assert {group.name: group.size for group in found.groups} == {"mid.weight": 9}
    assert found.left_out["fc.weight"] == "it runs through lstm, which is not known"
    assert found.left_out["lstm.weight_ih_l0"] == "it runs through lstm, which is not known"


def test_a_rule_that_fails_is_an_operation_that_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from biprune.structured.labels import RULES

    def fails(*args: object, **kwargs: object) -> None:
        raise IndexError

    monkeypatch.setitem(RULES, "softplus", fails)
    net = nn.Sequential(nn.Linear(4, 3), nn.Softplus(), nn.Linear(3, 2))
    found = find_groups(net, torch.zeros(2, 4))
    assert not found.groups
    assert "softplus (IndexError), which is not known" in found.left_out["0.weight"]


def test_walks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biprune.structured.walk.MOST_WALKS", 1)
    found = find_groups(adversarial.build("rotary"), torch.zeros(2, 8))
    assert not found.groups
    assert set(found.left_out.values()) >= {"its ties could not be settled"}


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x, inplace=True).mul_(2)


def test_what_is_written_in_place_is_followed() -> None:
    net = nn.Sequential(nn.Linear(4, 3), Twice(), nn.Linear(3, 2))
    assert find_groups(net, torch.zeros(2, 4)).groups[0].size == 3


def titles(name: str, **options: Any) -> list[str]:
    model, example = adversarial.build(name), adversarial.MODULES[name][1]
    found = find_groups(model, example, **options)  # pyright: ignore[reportArgumentType]
    return [group.title for group in found.groups]


def test_groups_are_called_what_they_are() -> None:
    heads = "attention heads: 2, each with its queries"
    assert titles("layers") == [f"blocks.{block} {heads}" for block in (0, 1)]
    assert titles("layers", streams=True)[0] == "residual stream: 16 units"
    assert titles("layers", attention="width")[:2] == [
        "blocks.0 width of heads: 2 units, each of all heads",
        "blocks.0.v width of heads: 4 units, each of all heads",
    ]
    assert titles("tied") == ["up width: 10 units"]
    assert titles("glu") == ["conv channels: 4 units", "next channels: 6 units"]
    assert titles("shared") == ["stem and others channels: 6 units"]
