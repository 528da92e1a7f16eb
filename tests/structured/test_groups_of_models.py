from __future__ import annotations

import threading

import pytest
import torch
from torch import Tensor, nn

import adversarial
import biprune
from architectures import ARCHITECTURES, CLASSES, Residual, build, images, scale_shares
from biprune.core.groups import Group, Slice
from biprune.structured.find import Trial, find_groups, labels_of, without_culprits
from biprune.structured.grouping import Coupling
from biprune.structured.labels import RULES
from biprune.structured.rules.pointwise import NOT_FINITE

# Worked out by hand from the networks: every group with its number of units.
GROUPS = {
    "residual": {"stem.weight": 6, "conv1.weight": 4, "conv3.weight": 8},
    "dense": {"stem.weight": 6, "conv1.weight": 4, "conv2.weight": 4},
    "inverted": {"stem.weight": 6, "expand.weight": 12},
    "grouped": {"conv1.weight": 4, "wide.weight": 6, "mixed.weight": 4},
    "flat": {"0.weight": 4, "4.weight": 6, "7.weight": 10},
    "squeeze": {"conv1.weight": 8, "squeeze.weight": 4, "conv2.weight": 6},
    "torch_vit": {
        "blocks.0.layers.0.self_attn.in_proj_weight": 4,
        "blocks.0.layers.0.linear1.weight": 16,
        "blocks.0.layers.1.self_attn.in_proj_weight": 4,
        "blocks.0.layers.1.linear1.weight": 16,
    },
    "written_vit": {
        "blocks.0.attention.qkv.weight": 3,
        "blocks.0.fc1.weight": 16,
        "blocks.1.attention.to_q.weight": 4,
        "blocks.1.fc1.weight": 16,
        "blocks.2.attention.c_attn.weight": 2,
        "blocks.2.fc1.weight": 16,
    },
    "padded": {"conv1.weight": 4, "conv2.weight": 6, "conv3.weight": 4},
    "transposed": {"down.weight": 6, "up.weight": 8, "side.weight": 4, "join.weight": 6},
    "group_normed": {"0.weight": 4},
    "shuffled": {"conv1.weight": 8, "conv3.weight": 6},
    "joined": {"wide.weight": 4, "wide.weight[4]": 6},
    "normed_late": {"0.weight": 8, "3.weight": 6, "7.weight": 4},
    "transition": {"stem.weight": 8, "reduce.weight": 6, "conv1.weight": 4},
    "separable": {"conv1.weight": 8, "conv2.weight": 6},
    "lit": {"conv1.weight": 8, "conv2.weight": 6},
}
# Beside the layer that is the output, which is left out everywhere.
LEFT_OUT = {
    "torch_vit": {"patches.weight": "norm whose statistics are over all of it"},
    "written_vit": {"patches.weight": "norm whose statistics are over all of it"},
    "group_normed": {"3.weight": "norm whose statistics are over all of it"},
    "shuffled": {"conv2.weight": "sort is over all of it"},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_groups_of(name: str) -> None:
    found = find_groups(build(name), images())
    assert {group.name: group.size for group in found.groups} == GROUPS[name]
    reasons = dict(found.left_out)
    outputs = [n for n, reason in reasons.items() if reason == "it is the model's output"]
    assert len(outputs) == 1
    del reasons[outputs[0]]
    assert reasons.keys() == LEFT_OUT.get(name, {}).keys()
    for weight, reason in LEFT_OUT.get(name, {}).items():
        assert reason in reasons[weight]


def slices(group: Group) -> dict[tuple[str, int], tuple[str, bool]]:
    return {(part.tensor, part.dim): (part.role, part.gated) for part in group.slices}


def group_of(model: nn.Module, name: str) -> Group:
    return next(group for group in find_groups(model, images()).groups if group.name == name)


def test_a_residual_stream_owns_all_that_write_and_read_it() -> None:
    group = group_of(build("residual"), "stem.weight")
    assert slices(group) == {
        ("stem.weight", 0): ("filter", False),
        ("stem_norm.weight", 0): ("other", True),
        ("stem_norm.bias", 0): ("other", True),
        ("conv1.weight", 1): ("input", False),
        ("conv2.weight", 0): ("filter", False),
        ("norm2.weight", 0): ("other", True),
        ("norm2.bias", 0): ("other", True),
        ("conv3.weight", 1): ("input", False),
        ("shortcut.weight", 1): ("input", False),
    }
    assert all(torch.equal(part.places, torch.arange(6)[:, None]) for part in group.slices)


def test_without_a_norm_the_filter_is_the_gate() -> None:
    assert slices(group_of(build("flat"), "4.weight")) == {
        ("4.weight", 0): ("filter", True),
        ("4.bias", 0): ("other", True),
        ("7.weight", 1): ("input", False),
    }


def test_norms_behind_a_concatenation_and_of_other_kinds_are_gates() -> None:
    dense = slices(group_of(build("dense"), "conv1.weight"))
    assert {key for key, (_, gated) in dense.items() if gated} == {
        (f"norm{number}.{name}", 0) for number in (2, 3) for name in ("weight", "bias")
    }
    normed = slices(group_of(build("transposed"), "up.weight"))
    assert normed["norm.weight", 0] == ("other", True)
    assert normed["up.weight", 1] == ("filter", False)
    linear = slices(group_of(build("flat"), "7.weight"))
    assert linear["8.weight", 0] == ("other", True)
    assert linear["9.weight", 0] == ("other", False)  # PReLU


def gates(name: str, group: str) -> set[str]:
    return {part.tensor for part in group_of(build(name), group).gates}


def test_gates_are_at_norms_behind_activations_pools_and_depthwise_layers() -> None:
    late = {"0.weight": "2", "3.weight": "6", "7.weight": "11"}
    for group, norm in late.items():
        assert gates("normed_late", group) == {f"{norm}.weight", f"{norm}.bias"}
    assert gates("transition", "reduce.weight") == {
        f"norm{number}.{name}" for number in (1, 2) for name in ("weight", "bias")
    }
    assert gates("separable", "conv1.weight") == {"norm.weight", "norm.bias"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_no_gate_is_where_a_norm_undoes_the_scale(name: str) -> None:
    model = build(name)
    groups = find_groups(model, images()).groups
    shares = scale_shares(model, groups, images(16))
    for group in groups:
        assert group.gates
        own = [part.tensor for part in group.filters if part.gated]
        assert all(shares[group.name, tensor] > 1e-2 for tensor in own), own


def test_the_share_of_the_scale_is_zero_before_a_norm() -> None:
    for name, group in (("residual", "conv1.weight"), ("normed_late", "0.weight")):
        model = build(name)
        shares = scale_shares(model, find_groups(model, images()).groups, images(16))
        assert shares[group, group] < 1e-3


def test_places_behind_a_flattened_map_and_a_concatenation() -> None:
    flat = group_of(build("flat"), "4.weight").slices[-1]
    assert torch.equal(flat.places, torch.arange(96).view(6, 16))
    dense = {(p.tensor, p.dim): p for p in group_of(build("dense"), "conv2.weight").slices}
    assert dense["head.weight", 1].places.flatten().tolist() == [10, 11, 12, 13]
    assert dense["norm3.bias", 0].places.flatten().tolist() == [10, 11, 12, 13]


def test_heads_lie_in_queries_keys_and_values() -> None:
    name = "blocks.0.layers.0.self_attn.in_proj_weight"
    rows, bias, columns = group_of(build("torch_vit"), name).slices
    assert rows.places[1].tolist() == [3, 4, 5, 15, 16, 17, 27, 28, 29]
    assert torch.equal(bias.places, rows.places)
    assert columns.places[1].tolist() == [3, 4, 5]
    assert (columns.role, columns.gated, rows.gated) == ("input", True, False)


def test_grouped_convolutions_lose_what_leaves_more_units() -> None:
    model = build("grouped")
    narrow = {(p.tensor, p.dim): p for p in group_of(model, "mixed.weight").slices}
    assert narrow["mixed.weight", 0].places[1].tolist() == [3, 4, 5]
    assert narrow["narrow.weight", 0].places[1].tolist() == [2, 3]
    assert narrow["multiplied.weight", 0].places[1].tolist() == [4, 5, 6, 7]
    wide = {(p.tensor, p.dim): p for p in group_of(model, "conv1.weight").slices}
    assert wide["conv1.weight", 0].places[1].tolist() == [1, 5]
    assert wide["wide.weight", 1].places[1].tolist() == [1]


def test_nothing_is_touched_and_weights_do_not_matter() -> None:
    model = build("residual").train()
    model.stem.weight.requires_grad_(False)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    found = find_groups(nn.DataParallel(model), images())
    assert model.training
    assert not model.stem.weight.requires_grad
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    for parameter in model.parameters():  # where zero weights hide everything
        nn.init.zeros_(parameter)
    again = find_groups(model.double(), images().double())
    for one, other in zip(found.groups, again.groups, strict=True):
        assert one.name == other.name
        assert slices(one) == slices(other)


class Unweighted(nn.Module):
    """Reads its channels without weights as well, and returns some of them."""

    def __init__(self, norm: nn.Module, returns: bool = False) -> None:
        super().__init__()
        self.conv, self.norm, self.returns = nn.Conv2d(3, 4, 3), norm, returns
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = self.norm(self.conv(x))
        logits = self.head(x.mean(dim=(2, 3)))
        return (logits, x.square()) if self.returns else logits


def test_what_cannot_be_removed_is_left_out_with_the_reason() -> None:
    returned = find_groups(Unweighted(nn.Identity(), returns=True), images())
    assert returned.left_out["conv.weight"] == "it is the model's output"
    weighted = Unweighted(nn.Identity())
    nn.utils.parametrizations.weight_norm(weighted.conv)
    reasons = find_groups(weighted, images()).left_out
    assert reasons["conv.parametrizations.weight.original1"] == NOT_FINITE


def test_a_norm_without_weights_passes_units_on() -> None:
    """What it makes of a unit that is zero is a constant, which nobody reads any more."""
    found = find_groups(Unweighted(nn.BatchNorm2d(4, affine=False)), images())
    assert {group.name: group.size for group in found.groups} == {"conv.weight": 4}


def test_added_keys_belong_to_their_heads() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, add_bias_kv=True, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    (group,) = find_groups(Added(), torch.zeros(2, 3, 4)).groups
    assert group.size == 2
    assert ("attention.bias_k", 2) in slices(group)


def test_models_that_do_not_run_are_refused_in_a_line() -> None:
    with pytest.raises(ValueError, match=r"of shape \(1, 4, 8, 8\) \(RuntimeError: Given groups=1"):
        find_groups(Residual(), torch.zeros(1, 4, 8, 8))
    with pytest.raises(
        ValueError, match=r"of shape \(3, 8, 8\) .* Pass an `example_input`"
    ) as info:
        find_groups(Residual().eval(), images()[0])
    assert "\n" not in str(info.value)
    for wrong in (None, 3, torch.zeros(())):
        with pytest.raises(ValueError, match="`example_input` must be a batch of samples"):
            find_groups(Residual(), wrong)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"`attention` must be one of 'heads', .* got 'head'"):
        find_groups(Residual(), images(), attention="head")  # pyright: ignore[reportArgumentType]


def test_models_that_cannot_be_traced_are_refused_with_a_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise KeyError("first line\nsecond line")

    monkeypatch.setattr("torch.export.export", fail)
    monkeypatch.setattr("torch.fx.experimental.proxy_tensor.make_fx", lambda *_, **__: fail)
    with pytest.raises(ValueError, match=r"cannot be found \(KeyError: .*'filter' or 'weight'\.$"):
        find_groups(Residual(), images())


class Logarithmic(nn.Module):
    """Takes numbers from [0, 1] only."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv((x + 1e-3).log() + (1.001 - x).log()))
        return self.head(x.mean(dim=(2, 3)))


def test_a_model_with_a_domain() -> None:
    found = find_groups(Logarithmic(), images().sigmoid())
    assert [group.name for group in found.groups] == ["conv.weight"]
    outside = find_groups(Logarithmic(), -1 - images().sigmoid())
    assert outside.groups[0].name == "conv.weight"  # no number is needed to know that


class Masked(nn.Module):
    """Tokens, and a mask that must be as long as they are: 0 pads, and has to be masked."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.fc = nn.Embedding(9, 6), nn.Linear(6, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        if not torch.equal(tokens != 0, mask):
            raise ValueError("The mask is of other tokens.")
        x = torch.relu(self.fc(self.embedding(tokens))) * mask[..., None]
        return self.head(x.sum(dim=1) / mask.sum(dim=1, keepdim=True))


def test_arguments_that_belong_together_are_drawn_together() -> None:
    tokens = torch.tensor([[1, 2, 0, 0], [3, 4, 5, 0], [6, 7, 8, 1]])
    found = find_groups(Masked(), (tokens, tokens != 0))
    assert "fc.weight" in {group.name for group in found.groups}


def test_parameters_that_are_no_floats_are_let_be() -> None:
    model = build("residual")
    model.code = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
    found = find_groups(model, images())
    assert {group.name: group.size for group in found.groups} == GROUPS["residual"]


def test_weights_that_a_hook_computes_are_left_out_by_their_own_names() -> None:
    model = build("flat")
    with pytest.warns(FutureWarning, match="weight_norm"):
        nn.utils.weight_norm(model[0])
    model(images())
    found = find_groups(model, images())
    assert found.left_out["0.weight_v"] == NOT_FINITE


def test_a_module_that_holds_what_cannot_be_copied_is_refused() -> None:
    model = build("flat")
    model.lock = threading.Lock()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match=r"cannot be copied: .*lock.* needs a __deepcopy__"):
        biprune.prune(model, [(images(), torch.zeros(2))], sparsity=0.5)


def shifted(group: Group) -> Group:
    """A coupling that is wrong: the reader's channels are the neighbours."""
    wrong = [
        Slice(p.tensor, p.dim, p.places.roll(1, 0) if p.role == "input" else p.places, p.role)
        for p in group.slices
    ]
    return Group(group.name, tuple(wrong))


def test_a_group_that_is_not_the_models_does_not_pass_the_trial() -> None:
    model = build("flat")
    trial = Trial(model, images(), labels_of(model, images()), seed=0)
    for group in find_groups(model, images()).groups:
        assert trial.objection([group]) is None
        assert "cannot go by themselves" in str(trial.objection([shifted(group)]))


def test_a_rule_that_is_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if softmax did not care for the units that it is over."""
    monkeypatch.setitem(RULES, "softmax", RULES["relu6"])
    model, example = adversarial.build("softmax"), adversarial.MODULES["softmax"][1]
    found = find_groups(model, example)  # pyright: ignore[reportArgumentType]
    assert [group.name for group in found.groups] == ["next.weight"]
    assert "not the same as setting it to zero" in found.left_out["conv.weight"]


class Quarrel:
    """A trial in which two groups do not go together."""

    def __init__(self) -> None:
        self.calls = 0

    def objection(self, groups: list[Group]) -> ValueError | None:
        self.calls += 1
        quarrel = {"b", "g"} <= {group.name for group in groups}
        return ValueError("they quarrel") if quarrel else None


def test_groups_that_do_not_go_together_are_found_by_halves() -> None:
    groups = tuple(Group(name, ()) for name in "abcdefgh")
    quarrel = Quarrel()
    found = without_culprits(Coupling(groups, {}), quarrel)  # pyright: ignore
    assert [group.name for group in found.groups] == list("abcdefh")
    assert found.left_out == {"g": "they quarrel"}
    assert quarrel.calls < 2 * len(groups)
