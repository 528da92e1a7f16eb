"""The coupled groups of a model: found by labels, tried, and made a structure.

The trial asks of groups, before they are offered, whether the model without some of their units is
the one in which these are zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from biprune.core.files import first_line
from biprune.core.groups import GROUP, Group, Groups, Measure
from biprune.core.parameters import Patterns, matching, parameter_names, unwrap
from biprune.core.structure import Scope
from biprune.structured.calls import (
    Attention,
    Inputs,
    by_position,
    check_attention,
    check_runs,
    difference,
    inputs_to_compare,
    outputs,
)
from biprune.structured.certificate import raised
from biprune.structured.graph import NoBoxError, without_units
from biprune.structured.grouping import Coupling, coupling
from biprune.structured.labels import Labels
from biprune.structured.macs import macs_of_units
from biprune.structured.removal import gone_atoms, tensors_of, zero_
from biprune.structured.trace import Traced, trace
from biprune.structured.walk import Walk
from biprune.training.batches import evaluation_mode
from biprune.training.copying import copied, refuse_meta
from biprune.training.seeding import derive_seed

MOST_ROUNDS = 8  # of ties that a trial asks for
SAMPLES = 2  # where any number will do
SHARES = (0.0, 0.5)  # of the units, but at least one
TOLERANCE = 1e-8  # of the largest output, in float64: deep nets blow rounding up to 1e-12


def find_groups(
    model: nn.Module,
    example_input: Inputs,
    *,
    attention: Attention = "heads",
    streams: bool = False,
    seed: int = 0,
) -> Coupling:
    """Find the coupled groups of `model`: units that can only be removed together.

    Groups are found by carrying labels through the exported graph; see `labels`. Then units of all
    of them are removed from a graph with random weights: first one of each, then half of all. A
    group whose removal is not the same as setting it to zero is left out, with the reason.

    Args:
        model: Any module; it is not changed, and its weights do not matter.
        example_input: A small batch, a tuple of arguments, or a mapping of keyword arguments.
        attention: "heads" makes whole heads units; with grouped-query attention a unit is a
            key-value head with its queries. "queries" makes each head of queries a unit, whose key
            and value stay. "width" makes index d of all heads a unit.
        streams: Whether residual streams are groups too. What is left of such a model is a graph.
        seed: Of the trial.

    Returns:
        The groups, and what is left out by name, with the reason.

    Raises:
        ValueError: The model does not run on the example.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> found = find_groups(net, torch.zeros(2, 4))
    >>> [(group.name, group.size) for group in found.groups], found.left_out
    ([('0.weight', 3)], {'2.weight': "it is the model's output"})
    """
    return found_in(model, example_input, attention, streams, seed)[0]


def found_in(
    model: nn.Module, example_input: Inputs, attention: Attention, streams: bool, seed: int
) -> tuple[Coupling, Walk]:
    """The groups of a model, and the labels that they were found by; see `find_groups`."""
    check_attention(attention)
    refuse_meta(model)
    with evaluation_mode(model):
        check_runs(*by_position(unwrap(model), example_input))
    labels = labels_of(model, example_input, attention, streams)
    found = coupling(model, labels)
    if not labels.traced.exported:
        return found, labels
    trial = Trial(model, example_input, labels, seed)
    objection = trial.objection(found.groups)
    for _ in range(MOST_ROUNDS):
        # What is left in the middle of a view may be no tensor: such units go together.
        if not isinstance(objection, NoBoxError) or not labels.tie_at(objection.node):
            break
        found = coupling(model, labels)
        objection = trial.objection(found.groups)
    return (found if objection is None else without_culprits(found, trial)), labels


def labels_of(
    model: nn.Module,
    example_input: Inputs,
    attention: Attention = "heads",
    streams: bool = False,
    traced: Traced | None = None,
) -> Walk:
    """Labels carried through the graph of a model, which is traced unless it is given."""
    named = parameter_names(model)
    parameters = [name for name, parameter in named.items() if parameter.is_floating_point()]
    buffers = tensors_of(model).keys() - named.keys()
    traced = traced or trace(model, example_input)
    return Walk(traced, parameters, buffers, attention, streams)


def without_culprits(found: Coupling, trial: Trial) -> Coupling:
    """The groups that go alone and together with those before them."""
    accepted: list[Group] = []
    left_out = dict(found.left_out)

    def add(block: Sequence[Group]) -> None:
        """Accept what of a block goes together with what is accepted, found by halves."""
        objection = trial.objection([*accepted, *block]) if block else None
        if objection is None:
            accepted.extend(block)
        elif len(block) == 1:
            left_out[block[0].name] = str(objection)
        else:
            add(block[: len(block) // 2])
            add(block[len(block) // 2 :])

    add(found.groups)
    return Coupling(tuple(accepted), left_out)


def group_structure(
    model: nn.Module,
    example_input: Inputs,
    *,
    scope: Scope = "layer",
    measure: Measure = "units",
    round_to: int = 1,
    include: Patterns = None,
    exclude: Patterns = None,
    attention: Attention = "heads",
    streams: bool = False,
) -> tuple[Groups, dict[str, str]]:
    """Make the groups of `model` a structure to prune by.

    Args:
        model: Any module; it is not changed.
        example_input: As for `find_groups`.
        scope: What units compete in; see `Structure`.
        measure: What the sparsity is counted in.
        round_to: The kept units of each group are a multiple of this, or all of them.
        include: Takes only the groups that one of these parameters writes.
        exclude: Leaves out the groups that one of these parameters writes: a layer that is left
            alone keeps what is coupled with it. So does a frozen layer.
        attention: As for `find_groups`.
        streams: As for `find_groups`.

    Returns:
        The structure, and what is left out of it by name, with the reason.

    Raises:
        ValueError: No group can be removed.
    """
    found, labels = found_in(model, example_input, attention, streams, seed=0)
    found = _chosen(model, found, include, exclude)
    if not found.groups:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.left_out.items())
        raise ValueError(
            "The model has no coupled groups that can be removed"
            f"{f' ({reasons})' if reasons else ''}. Prune it by another structure."
        )
    macs, products = macs_of_units(model, example_input, labels, found.groups)
    structure = Groups(
        *GROUP,
        scope=scope,
        groups=found.groups,
        shapes={name: tuple(p.shape) for name, p in parameter_names(model).items()},
        macs=macs,
        products=products,
        measure=measure,
        round_to=round_to,
    )
    return structure, found.left_out


def _chosen(model: nn.Module, found: Coupling, include: Patterns, exclude: Patterns) -> Coupling:
    """What `include` and `exclude` leave of the groups, frozen ones aside."""
    parameters = parameter_names(model)
    wanted = None if include is None else matching(model, include, "include")
    unwanted = set() if exclude is None else matching(model, exclude, "exclude")
    groups: list[Group] = []
    left_out = dict(found.left_out)
    for group in found.groups:
        written = {id(parameters[part.tensor]) for part in group.filters}
        held = [parameters[part.tensor] for part in group.slices]
        if written & unwanted:
            left_out[group.name] = "left out by `exclude`"
        elif wanted is not None and not written & wanted:
            left_out[group.name] = "not in `include`"
        elif not all(parameter.requires_grad for parameter in held):
            left_out[group.name] = "a parameter of it is frozen"
        else:
            groups.append(group)
    return replace(found, groups=tuple(groups), left_out=left_out)


class Trial:
    """A copy of a model with random weights, as a graph on which groups are tried.

    Costs four forwards of two samples for each call of `objection`.
    """

    def __init__(self, model: nn.Module, example_input: Inputs, labels: Labels, seed: int) -> None:
        own = copied(unwrap(model)).float().cpu().eval()
        _randomize_(own, derive_seed(seed, 1))
        self._model, self._labels, self._seed = own, labels, seed
        called, tensors = by_position(own, example_input)
        inputs = [tensor.detach().cpu() for tensor in tensors]
        inputs = tuple(t.float() if t.is_floating_point() else t for t in inputs)
        free = all(size.low < size.high for size in labels.traced.sizes[0][:1] if size.high)
        samples = SAMPLES if free else max(SAMPLES, len(inputs[0]))
        drawn = inputs_to_compare(called, inputs, samples, derive_seed(seed, 0))
        self._inputs = tuple(t.double() if t.is_floating_point() else t for t in drawn)

    def objection(self, groups: Sequence[Group]) -> ValueError | None:
        """Why one unit of each group, or half of all, cannot be removed; None if they can."""
        for place, share in enumerate(SHARES):
            keep = {
                group.name: _drawn(group.size, share, derive_seed(self._seed, 2, place, number))
                for number, group in enumerate(groups)
            }
            try:
                error = self._error(groups, keep)
            except ValueError as refused:
                return refused
            except Exception as failed:  # whatever a forward raises
                line = first_line(failed)
                return ValueError(f"the model does not run without some of it ({line})")
            if error > TOLERANCE:  # without finite numbers nothing can be seen
                return ValueError("removing some of it is not the same as setting it to zero")
        return None

    def _error(self, groups: Sequence[Group], keep: Mapping[str, Tensor]) -> float:
        """By how much outputs differ without the units, in parts of the largest one."""
        _randomize_(self._model, derive_seed(self._seed, 1))
        zero_(self._model, groups, keep)
        gone = gone_atoms(self._labels, groups, keep)
        # One after the other, and zeroed in place: models are large.
        expected = self._outputs(torch.zeros_like(gone))
        return difference(expected, self._outputs(gone))

    def _outputs(self, gone: Tensor) -> list[Tensor]:
        tensors = tensors_of(self._model)
        with raised(torch.float64):
            model = without_units(self._labels, gone, tensors, torch.float64)
            return outputs(model, self._inputs, self._seed)


def _drawn(size: int, share: float, seed: int) -> Tensor:
    """Which units stay, drawn at random: all but a share of them, and all but one at least."""
    keep = torch.ones(size, dtype=torch.bool)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    keep[order[: max(1, int(size * share))]] = False
    return keep


@torch.no_grad()
def _randomize_(model: nn.Module, seed: int) -> None:
    """Weights that keep signals near one, whatever the depth, and statistics of no batch."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        wide = parameter.ndim >= 2
        scale = math.sqrt(2 / max(1, math.prod(parameter.shape[1:]))) if wide else 0.3
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    for module in model.modules():
        norm = hasattr(module, "eps") and isinstance(getattr(module, "weight", None), Tensor)
        names = ["running_var"] + ["weight"] * norm
        for values in (getattr(module, name, None) for name in names):
            if isinstance(values, Tensor):
                values.copy_(torch.rand(values.shape, generator=generator) + 0.5)
        if isinstance(mean := getattr(module, "running_mean", None), Tensor):
            mean.copy_(torch.randn(mean.shape, generator=generator) * 0.3)
