"""Which slices of a model's parameters can only be removed together: its coupled groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from biprune.copying import copied
from biprune.deploy.coupling.tracing import trace
from biprune.deploy.coupling.trial import Trial
from biprune.deploy.coupling.units import coupled
from biprune.deploy.inputs import Inputs, as_inputs
from biprune.deploy.outputs import check_runs, first_line
from biprune.deploy.surgery.heads import find_heads
from biprune.groups import Group
from biprune.parameters import parameter_names, unwrap


@dataclass(frozen=True)
class Coupling:
    """The groups whose units can be removed, and the others by name with the reason."""

    groups: tuple[Group, ...]
    left_out: dict[str, str]


def find_groups(model: nn.Module, example_input: Inputs, *, seed: int = 0) -> Coupling:
    """Find the coupled groups of `model`, each of them tried out.

    A group is offered if half of its units can be removed from a copy with random weights, alone
    and together with half of all others, with the outputs that the copy has when they are zero; see
    `trial`. `example_input` is a small batch, or a tuple of arguments. Costs two forwards of two
    samples for each group, and a copy of the model or three in memory. The model and the caller's
    random generators are not touched; which groups there are does not depend on the weights.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> found = find_groups(net, torch.zeros(1, 4))
    >>> [(group.name, group.size) for group in found.groups], found.left_out
    ([('0.weight', 3)], {'2.weight': "it is the model's output"})
    """
    names = {id(p): name for name, p in parameter_names(model).items()}
    # On the processor in float32: nothing here depends on where the model is or how precise.
    own = copied(unwrap(model)).float().cpu().eval()
    for parameter in own.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    own_names = dict(zip(map(id, own.parameters()), names.values(), strict=True))
    inputs = tuple(
        t.detach().cpu().float() if t.is_floating_point() else t.cpu()
        for t in as_inputs(example_input)
    )
    check_runs(own, inputs)
    try:
        trial = Trial(own, inputs, seed)
    except Exception as error:  # whatever a forward of the user's raises
        raise ValueError(
            "The model does not run with random weights, so that its groups cannot be tried "
            f"({type(error).__name__}: {first_line(error)}). Prune it by structure 'filter' or "
            "'weight'."
        ) from error
    candidates, left_out = _candidates(own, inputs, own_names)
    found = _tried(candidates, left_out, trial)
    order = {name: place for place, name in enumerate(names.values())}
    by_place = sorted(found.left_out, key=lambda name: order.get(name.split("[")[0], len(order)))
    return Coupling(found.groups, {name: found.left_out[name] for name in by_place})


def _tried(candidates: Sequence[Group], left_out: dict[str, str], trial: Trial) -> Coupling:
    alone = []
    for group in candidates:
        if objection := trial.objection([group]):
            left_out[group.name] = objection
        else:
            alone.append(group)
    accepted: list[Group] = []

    def add(block: list[Group]) -> None:
        """Accept what of a block goes together with what is accepted, found by halves."""
        objection = trial.objection([*accepted, *block]) if block else None
        if objection is None:
            accepted.extend(block)
        elif len(block) == 1:
            left_out[block[0].name] = f"together with other groups, {objection}"
        else:
            add(block[: len(block) // 2])
            add(block[len(block) // 2 :])

    add(alone)
    return Coupling(tuple(accepted), left_out)


def _candidates(
    model: nn.Module, inputs: tuple[Tensor, ...], names: Mapping[int, str]
) -> tuple[list[Group], dict[str, str]]:
    """Groups as the graph and the rule for heads have them, in model order, not yet tried."""
    by_name = find_heads(model)
    heads = by_name.values()
    inner = {id(layer) for each in heads for layer in each.makers()}
    traced = trace(model, inputs, lambda layer: id(layer) not in inner)
    groups, left_out = coupled(traced, names)
    for name, layer in model.named_modules():
        if isinstance(layer, _ConvNd | nn.Linear) and "weight" not in layer._parameters:
            left_out[f"{name}.weight"] = "it is parametrized"
        if isinstance(layer, nn.MultiheadAttention) and name not in by_name:
            left_out[f"{name}.in_proj_weight"] = (
                "attention of one head, with added keys, or with code of its own"
            )
    own = [group for each in heads if (group := each.group(names)) is not None]
    groups += {group.name: group for group in own}.values()
    order = {name: place for place, name in enumerate(names.values())}
    return sorted(groups, key=lambda group: order[group.filters[0].tensor]), left_out
