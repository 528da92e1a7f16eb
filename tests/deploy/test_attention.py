from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from architectures import Attention, CausalAttention, NormedAttention
from biprune.deploy.surgery.attention import HeadAttention, SelfAttention
from biprune.deploy.surgery.heads import find_heads, usual_attention
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


def test_dropout_falls_on_the_weights_in_training_only() -> None:
    small, _ = without(attention(dropout=0.5, batch_first=True), [0, 1])
    x = normal(BATCH, LENGTH, WIDTH)
    torch.manual_seed(0)
    weights = small.train()(x, x, x, average_attn_weights=False)[1]
    assert 0.3 < float((weights == 0).float().mean()) < 0.7
    assert torch.equal(small.eval()(x, x, x)[0], small(x, x, x)[0])


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


def test_the_usual_attention_is_told_by_what_it_computes() -> None:
    kinds = []
    for module in (Attention(12, 3), CausalAttention(12, 3), NormedAttention(12, 3)):
        for parameter in module.parameters():
            nn.init.zeros_(parameter)  # whatever the weights are
        kinds += [usual_attention(heads) for heads in find_heads(module).values()]
    assert kinds == ["plain", "causal", None]


def test_written_attention_is_put_together_anew() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        module = Attention(WIDTH, 3)
    module.attn_drop.p, module.proj_drop.p = 0.25, 0.5
    columns = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11])
    rows = torch.cat([columns, columns + WIDTH, columns + 2 * WIDTH])
    small = nn.Sequential(copy.deepcopy(module))
    resize_(
        small,
        {
            "0.qkv.weight": {0: rows},
            "0.qkv.bias": {0: rows},
            "0.proj.weight": {1: columns},
        },
    )
    part = small[0]
    assert isinstance(part, SelfAttention)
    assert (part.num_heads, part.head_dim, part.dropout) == (2, 4, 0.25)
    assert part.after == ["proj_drop"]
    assert math.isclose(part.scale, 0.5)
    with torch.no_grad():
        module.proj.weight[:, 4:8] = 0
    x = normal(2, LENGTH, WIDTH)
    torch.testing.assert_close(part.eval()(x), module.eval()(x))
    assert sorted(part.state_dict()) == sorted(module.state_dict())
    with pytest.raises(ValueError, match="takes its input alone, without masks"):
        part(x, torch.ones(LENGTH, LENGTH))
