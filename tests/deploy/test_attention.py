from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from architectures import Attention, CausalAttention, NormedAttention
from biprune.deploy.coupling.find import find_groups
from biprune.deploy.surgery.attention import HeadAttention, SelfAttention, replaced_modules
from biprune.deploy.surgery.fewer_heads import Way, way_without
from biprune.deploy.surgery.heads import find_heads
from biprune.deploy.surgery.resize import resize_

WIDTH, HEADS, LENGTH, BATCH = 12, 4, 5, 3


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def attention(**options: object) -> nn.MultiheadAttention:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = nn.MultiheadAttention(WIDTH, HEADS, **options)  # pyright: ignore[reportArgumentType]
        for parameter in made.parameters():
            nn.init.normal_(parameter, std=0.4)
        return made


def without(module: nn.MultiheadAttention, kept: list[int]) -> tuple[nn.Module, nn.Module]:
    """The module with some heads, and the oracle: torch's own, whose other heads nobody reads."""
    columns = torch.cat([torch.arange(3) + 3 * head for head in kept])
    masked = copy.deepcopy(module)
    with torch.no_grad():
        for column in set(range(WIDTH)) - set(columns.tolist()):
            masked.out_proj.weight[:, column] = 0
    cut = {"0.out_proj.weight": {1: columns}}
    if module.in_proj_weight is not None:
        cut["0.in_proj_weight"] = {0: torch.cat([columns, columns + WIDTH, columns + 2 * WIDTH])}
    else:
        cut |= {f"0.{letter}_proj_weight": {0: columns} for letter in "qkv"}
    if module.in_proj_bias is not None:
        cut["0.in_proj_bias"] = {0: torch.cat([columns, columns + WIDTH, columns + 2 * WIDTH])}
    small = nn.Sequential(copy.deepcopy(module))
    resize_(small, cut)
    assert isinstance(small[0], HeadAttention)
    return small[0], masked


def masks(kind: str) -> dict[str, Tensor]:
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[1, 3:] = True
    return {
        "none": {},
        "causal": {"attn_mask": causal},
        "numbers": {"attn_mask": normal(LENGTH, LENGTH, seed=1)},
        "by head": {"attn_mask": normal(BATCH * HEADS, LENGTH, LENGTH, seed=2)},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": causal, "key_padding_mask": padding},
    }[kind]


@pytest.mark.parametrize("kind", ["none", "causal", "numbers", "by head", "padding", "both"])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_fewer_heads_are_torchs_own_whose_others_are_zero(
    kind: str, need_weights: bool, batch_first: bool
) -> None:
    small, masked = without(attention(batch_first=batch_first), [0, 2, 3])
    x = normal(BATCH, LENGTH, WIDTH)
    x = x if batch_first else x.transpose(0, 1)
    options = {"need_weights": need_weights, "average_attn_weights": False, **masks(kind)}
    for mode in (True, False):  # dropout is zero, so that training gives the same
        found, found_weights = small.train(mode)(x, x, x, **options)
        expected, weights = masked.train(mode)(x, x, x, **options)
        torch.testing.assert_close(found, expected)
        if need_weights:
            torch.testing.assert_close(found_weights, weights[:, [0, 2, 3]])
        else:
            assert found_weights is None


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("sizes", [{}, {"kdim": 7, "vdim": 9}])
def test_one_sequence_other_widths_and_no_bias(bias: bool, sizes: dict[str, int]) -> None:
    small, masked = without(attention(bias=bias, **sizes), [1])
    query = normal(LENGTH, WIDTH)
    key = normal(6, sizes.get("kdim", WIDTH), seed=1)
    value = normal(6, sizes.get("vdim", WIDTH), seed=2)
    torch.testing.assert_close(small(query, key, value)[0], masked(query, key, value)[0])
    assert small(query, key, value)[1].shape == (LENGTH, 6)


def test_heads_can_be_removed_again() -> None:
    small, masked = without(attention(batch_first=True), [0, 2, 3])
    columns = torch.arange(6)
    again = nn.Sequential(small)
    rows = torch.cat([columns, columns + 9, columns + 18])
    resize_(
        again,
        {
            "0.in_proj_weight": {0: rows},
            "0.in_proj_bias": {0: rows},
            "0.out_proj.weight": {1: columns},
        },
    )
    assert again[0].num_heads == 2
    with torch.no_grad():
        masked.out_proj.weight[:, 9:] = 0
    x, mask = normal(BATCH, LENGTH, WIDTH), masks("by head")
    torch.testing.assert_close(again[0](x, x, x, **mask)[0], masked(x, x, x, **mask)[0])


@pytest.mark.parametrize("need_weights", [True, False])
def test_training_is_torchs_own_draw_for_draw(need_weights: bool) -> None:
    own = attention(dropout=0.5, batch_first=True).train()
    x = normal(BATCH, LENGTH, WIDTH)
    found, expected = (
        seeded(module, x, x, x, need_weights=need_weights)
        for module in (HeadAttention(own, list(range(HEADS))), own)
    )
    torch.testing.assert_close(found, expected)
    small, _ = without(own, [0, 1])
    assert small.training
    assert not torch.equal(small(x, x, x)[0], small(x, x, x)[0])
    assert torch.equal(small.eval()(x, x, x)[0], small(x, x, x)[0])


def seeded(module: nn.Module, *inputs: Tensor, **options: object) -> object:
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        return module(*inputs, **options)


def test_what_it_cannot_do_is_refused() -> None:
    small, _ = without(attention(), [0])
    x = normal(LENGTH, WIDTH)
    with pytest.raises(ValueError, match="`is_causal` is a hint about `attn_mask`"):
        small(x, x, x, is_causal=True)
    with pytest.raises(ValueError, match="'in_proj_weight' can only lose whole heads"):
        resize_(nn.Sequential(attention()), {"0.in_proj_weight": {0: torch.arange(35)}})
    rows = torch.tensor([0, 1, 2, 12, 13, 14, 24, 25, 26])
    with pytest.raises(ValueError, match="one attention module cannot lose heads: wrap it"):
        resize_(attention(), {"in_proj_weight": {0: rows}})


class Own(nn.Module):
    """Attention as it is written; what it goes by is up to the subclass."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.num_heads, self.embed_dim, self.label = 3, WIDTH, "mine"
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.p = dropout

    def attend(self, x: Tensor, width: int, mask: Tensor | None = None) -> Tensor:
        shape = (*x.shape[:2], 3, -1, width // self.num_heads)
        q, k, v = self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-2, -1) / k.shape[-1] ** 0.5
        scores = scores if mask is None else scores + mask
        weights = functional.dropout(scores.softmax(dim=-1), self.p, self.training)
        return self.proj((weights @ v).transpose(1, 2).reshape(*x.shape[:2], width))

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, self.embed_dim)


class ByInput(Own):
    """Reshapes by the width of the input."""

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x.shape[-1])


class Masked(ByInput):
    """The same, and takes a mask."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x.shape[-1], mask)


class MaskedByHead(Own):
    """Takes a mask, and goes by what it was told."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, self.embed_dim, mask)


class DropsInput(ByInput):
    """In training it drops some of its input, which is not usual."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.dropout(x, 0.1, self.training))


class Overridden(nn.MultiheadAttention):
    """Torch's own with other code."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:  # pyright: ignore
        return super().forward(query, key, value)[0] * 2


def ways(*modules: nn.Module) -> list[Way]:
    for module in modules:
        for parameter in module.parameters():
            nn.init.zeros_(parameter)  # whatever the weights are
    return [way_without(heads) for module in modules for heads in find_heads(module).values()]


def test_what_can_run_with_fewer_heads_stays_itself() -> None:
    normed, own, masked = ways(NormedAttention(12, 3), Own(), MaskedByHead())
    assert normed == Way()
    assert own == masked == Way(("embed_dim",))
    assert find_heads(Overridden(WIDTH, 3)) == {}


def test_what_goes_by_the_width_of_its_input_is_told_by_what_it_computes() -> None:
    modules = Attention(12, 3), CausalAttention(12, 3), ByInput(), ByInput(0.2)
    found = [each.usual for each in ways(*modules)]
    told = [(u.causal, u.scale, u.on_weights, u.on_result) for u in found if u is not None]
    assert told == [
        (False, "scale", "attn_drop", "proj_drop"),
        (True, None, None, "resid_dropout"),
        (False, None, "p", None),
        (False, None, "p", None),
    ]


class Scaled(ByInput):
    """Its scale is the probability that its one dropout would be told apart by."""

    def __init__(self, dropout: float) -> None:
        super().__init__(dropout)
        self.scale = 0.5

    def attend(self, x: Tensor, width: int, mask: Tensor | None = None) -> Tensor:
        shape = (*x.shape[:2], 3, -1, width // self.num_heads)
        q, k, v = self.qkv(x).reshape(shape).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-2, -1) * self.scale).softmax(dim=-1)
        weights = functional.dropout(weights, self.p, self.training)
        return self.proj((weights @ v).transpose(1, 2).reshape(*x.shape[:2], width))


def test_a_scale_is_not_taken_for_a_dropout() -> None:
    (way,) = ways(Scaled(0.1))
    assert way.usual is not None
    assert (way.usual.scale, way.usual.on_weights, way.usual.on_result) == ("scale", "p", None)


def cut(module: nn.Module) -> nn.Module:
    """The module in a sequence, without the second of its three heads."""
    columns = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11])
    rows = torch.cat([columns, columns + WIDTH, columns + 2 * WIDTH])
    small = nn.Sequential(copy.deepcopy(module))
    kept = {"0.qkv.weight": {0: rows}, "0.qkv.bias": {0: rows}, "0.proj.weight": {1: columns}}
    resize_(small, kept)
    return small


def drawn(module: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in module.parameters():
            nn.init.normal_(parameter, std=0.4)
    return module


def without_second(module: nn.Module) -> nn.Module:
    """The oracle: nobody reads the second head."""
    masked = copy.deepcopy(module)
    with torch.no_grad():
        masked.get_parameter("proj.weight")[:, 4:8] = 0
    return masked


@pytest.mark.parametrize("make", [Own, MaskedByHead])
def test_the_users_module_is_changed_in_place(make: type[Own]) -> None:
    module = drawn(make(0.5))
    small = cut(module)
    part, x = small[0], normal(2, LENGTH, WIDTH)
    assert type(part) is make
    assert replaced_modules(small) == {}
    assert (part.num_heads, part.embed_dim, part.label) == (2, 8, "mine")
    torch.testing.assert_close(part.eval()(x), without_second(module).eval()(x))
    assert not torch.equal(part.train()(x), part(x))
    if make is MaskedByHead:
        mask = normal(LENGTH, LENGTH, seed=4)
        torch.testing.assert_close(part.eval()(x, mask), without_second(module).eval()(x, mask))


@pytest.mark.parametrize("make", [Attention, ByInput])
def test_a_module_put_together_anew_has_all_but_the_code(make: type[nn.Module]) -> None:
    module = drawn(Attention(WIDTH, 3) if make is Attention else ByInput(0.3))
    module.register_buffer("seen", torch.ones(2))
    if isinstance(module, Attention):
        module.attn_drop.p, module.proj_drop.p = 0.25, 0.5
    small = cut(module)
    part, x = small[0], normal(2, LENGTH, WIDTH)
    assert isinstance(part, SelfAttention)
    assert replaced_modules(small) == {"0": make.__name__}
    assert part.num_heads == 2
    assert part.state_dict().keys() == module.state_dict().keys()
    torch.testing.assert_close(part.eval()(x), without_second(module).eval()(x))
    assert not torch.equal(part.train()(x), part(x))
    whole = SelfAttention(module.train(), part._usual)
    torch.testing.assert_close(seeded(whole, x), seeded(module, x))
    if isinstance(module, Attention):
        module.attn_drop.p = 0.75
    else:
        module.p = whole.p = 0.75
    torch.testing.assert_close(seeded(whole, x), seeded(module, x))
    again = cut_again(small)
    assert type(again) is SelfAttention
    assert again.num_heads == 1


def cut_again(small: nn.Module) -> nn.Module:
    columns = torch.arange(4)
    rows = torch.cat([columns, columns + 8, columns + 16])
    kept = {"0.qkv.weight": {0: rows}, "0.qkv.bias": {0: rows}, "0.proj.weight": {1: columns}}
    resize_(small, kept)
    return small.get_submodule("0")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Masked, "reshapes by the width of its input, and takes more than that input"),
        (DropsInput, "in training does more than dropout of weights and result"),
    ],
)
def test_heads_stay_where_a_module_of_ours_would_be_another(make: type[Own], reason: str) -> None:
    model = nn.Sequential(nn.Linear(6, WIDTH), make(), nn.Linear(WIDTH, 2))
    left_out = find_groups(model, torch.zeros(1, LENGTH, 6)).left_out
    assert reason in left_out["1.qkv.weight"]
    with pytest.raises(ValueError, match=reason):
        cut(make())
