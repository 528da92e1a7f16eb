from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.prune import l1_unstructured

from biprune.core.parameters import matching, parameter_names, prunable, unwrap
from biprune.core.selection import select
from biprune.core.structure import get_structure
from biprune.pruning.request import Request

WEIGHT, FILTER, CHANNEL = map(get_structure, ("weight", "filter", "channel"))


def test_pool_and_expand_by_hand() -> None:
    score = {"w": torch.tensor([[3.0, -1.0], [4.0, 2.0]]).view(2, 2, 1, 1)}
    assert WEIGHT.pool(score)["w"].tolist() == [3, -1, 4, 2]
    assert torch.allclose(FILTER.pool(score)["w"], torch.tensor([3.0, 20.0**0.5]))
    assert torch.allclose(CHANNEL.pool(score)["w"], torch.tensor([5.0, 2.0]))
    kept = {"w": torch.tensor([True, False])}
    assert FILTER.expand(kept, score)["w"].flatten().tolist() == [True, True, False, False]
    assert CHANNEL.expand(kept, score)["w"].flatten().tolist() == [True, False, True, False]
    assert FILTER.add_up(score)["w"].tolist() == [2, 6]
    assert CHANNEL.num_units(score) == {"w": 2}


def test_blocks_lie_along_the_input() -> None:
    blocks = get_structure("1:2")
    score = {"w": torch.arange(16.0).view(1, 4, 2, 2)}
    order = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]
    assert blocks.pool(score)["w"].tolist() == order
    assert torch.equal(blocks.expand(blocks.pool(score), score)["w"], score["w"])
    kept = select(score, 0.5, blocks)["w"]
    assert kept[0, :, 0, 0].tolist() == [False, True, False, True]
    assert int(kept.sum()) == 8


@pytest.mark.parametrize("name", ["4:4", "0:4", "5:4"])
def test_a_pattern_that_prunes_nothing_or_all_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="0 < n < m"):
        get_structure(name)


def test_what_does_not_divide_into_blocks_is_not_prunable() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, 1), nn.ConvTranspose2d(6, 8, 2))
    assert list(prunable(model, get_structure("2:4"))) == ["1.weight"]
    assert list(prunable(model, get_structure("2:4"), include="*")) == ["1.weight"]
    with pytest.raises(ValueError, match=r"0.weight: its 3 inputs do not divide by 5"):
        prunable(model, get_structure("2:5"))
    found = Request(None, "2:4").target(model, None)
    assert found.left_out == {
        "0.weight": "its 3 inputs do not divide by 4",
        "2.weight": "it is a transposed convolution",
    }


def test_what_is_prunable_in_a_conv_net(conv_net: nn.Module) -> None:
    assert list(prunable(conv_net, WEIGHT)) == ["conv1.weight", "conv2.weight", "head.weight"]
    assert list(prunable(conv_net, FILTER)) == ["conv1.weight", "conv2.weight"]
    assert list(prunable(conv_net, CHANNEL)) == ["conv2.weight"]


def test_grouped_convolutions_have_no_input_channels_to_prune() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 4, 1))
    assert list(prunable(model, FILTER)) == ["0.weight", "1.weight", "2.weight"]
    assert list(prunable(model, CHANNEL)) == ["2.weight"]


def test_attention_is_prunable() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert list(prunable(layer, WEIGHT)) == [
        "self_attn.in_proj_weight",
        "self_attn.out_proj.weight",
        "linear1.weight",
        "linear2.weight",
    ]
    apart = nn.MultiheadAttention(8, 2, kdim=4, vdim=6)
    assert list(prunable(apart, WEIGHT)) == [
        "q_proj_weight",
        "k_proj_weight",
        "v_proj_weight",
        "out_proj.weight",
    ]


def test_tied_tensors_count_once_and_embeddings_stay() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    tied[2].weight = tied[0].weight
    assert list(prunable(tied, WEIGHT)) == ["0.weight"]
    assert list(prunable(tied, WEIGHT, include="2.weight")) == ["0.weight"]

    language = nn.ModuleDict({"embed": nn.Embedding(9, 4), "head": nn.Linear(4, 9)})
    language["head"].weight = language["embed"].weight
    language["body"] = nn.Linear(4, 4)
    assert list(prunable(language, WEIGHT)) == ["body.weight"]
    assert list(prunable(language, WEIGHT, include="*")) == ["embed.weight", "body.weight"]


def test_frozen_weights_and_norms_stay(conv_net: nn.Module) -> None:
    conv_net.get_parameter("conv2.weight").requires_grad_(False)
    assert list(prunable(conv_net, WEIGHT)) == ["conv1.weight", "head.weight"]
    wide_norm = nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), nn.LayerNorm((2, 3)))
    assert list(prunable(wide_norm, WEIGHT, include="*")) == ["0.weight"]


def test_patterns(conv_net: nn.Module) -> None:
    assert list(prunable(conv_net, WEIGHT, exclude="head")) == ["conv1.weight", "conv2.weight"]
    assert list(prunable(conv_net, WEIGHT, exclude=["conv1.*", "head"])) == ["conv2.weight"]
    assert list(prunable(conv_net, WEIGHT, include="conv*")) == ["conv1.weight", "conv2.weight"]
    with pytest.raises(ValueError, match=r"pattern 'fc', which matches no parameter. Names look"):
        prunable(conv_net, WEIGHT, exclude="fc")
    with pytest.raises(ValueError, match="nothing to prune by weight"):
        prunable(conv_net, WEIGHT, exclude="*")
    with pytest.raises(ValueError, match="nothing to prune by filter: no trainable weight of a c"):
        prunable(nn.Linear(2, 2), FILTER)


def test_parametrized_weights_are_refused_by_name() -> None:
    normed = nn.Sequential(nn.Linear(4, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    with pytest.raises(ValueError, match=r"'1\.weight' is already parametrized"):
        prunable(normed, WEIGHT)
    with pytest.raises(ValueError, match=r"'1\.weight' is already parametrized"):
        prunable(normed, WEIGHT, exclude="0")
    assert list(prunable(normed, WEIGHT, exclude="1")) == ["0.weight"]
    assert list(prunable(normed, WEIGHT, include="0")) == ["0.weight"]
    pruned = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    l1_unstructured(pruned[0], "weight", 0.5)
    with pytest.raises(ValueError, match=r"'0\.weight' is already parametrized or pruned"):
        prunable(pruned, WEIGHT)
    with pytest.raises(ValueError, match="nothing to prune by filter"):
        prunable(normed, FILTER)  # a linear layer is none of its business
    attention = nn.ModuleDict({"a": nn.MultiheadAttention(4, 2)})
    nn.utils.parametrizations.orthogonal(attention["a"], "in_proj_weight")
    with pytest.raises(ValueError, match=r"'a\.in_proj_weight' is already parametrized"):
        prunable(attention, WEIGHT)


def test_names_are_the_users_own(conv_net: nn.Module) -> None:
    names = list(parameter_names(conv_net))
    compiled = torch.compile(conv_net, backend="eager")
    assert isinstance(compiled, nn.Module)
    assert unwrap(compiled) is conv_net
    assert list(parameter_names(compiled)) == names
    assert list(parameter_names(nn.DataParallel(conv_net))) == names
    conv_net.conv1 = torch.compile(conv_net.conv1, backend="eager")  # pyright: ignore
    assert list(parameter_names(conv_net)) == names
    assert list(prunable(conv_net, FILTER)) == ["conv1.weight", "conv2.weight"]
    wrapped = nn.DataParallel(conv_net)
    (found,) = matching(wrapped, "conv1", "include")
    assert found == id(parameter_names(conv_net)["conv1.weight"])


def test_a_layer_that_is_the_whole_model_goes_by_its_own_name() -> None:
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"^'weight' is already parametrized"):
        prunable(layer, WEIGHT)


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match=r"Unknown structure 'row'\. Structures: weight, filter"):
        get_structure("row")
    with pytest.raises(ValueError, match="`scope` must be one of global, layer, got 'all'"):
        get_structure("filter", "all")  # pyright: ignore[reportArgumentType]
    assert get_structure("filter", "global").scope == "global"
