"""The coupled groups of a model: found by labels, and tried before they are offered."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from biprune.core.groups import Group
from biprune.core.parameters import parameter_names, unwrap
from biprune.structured.calls import by_position
from biprune.structured.graph import NoBoxError
from biprune.structured.grouping import Coupling, coupling
from biprune.structured.inputs import Attention, Inputs
from biprune.structured.outputs import check_runs
from biprune.structured.removing import tensors_of
from biprune.structured.trace import Traced, trace
from biprune.structured.trial import Trial
from biprune.structured.walk import Walk, walked
from biprune.training.evaluation import evaluation_mode

MOST_ROUNDS = 8


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
    of them are removed from a graph with random weights: one of each, and half of all. A group
    whose removal is not the same as setting it to zero is left out, with the reason.

    Args:
        model: Any module; it is not changed, and its weights do not matter.
        example_input: A small batch, a tuple of arguments, or a mapping of keyword arguments.
        attention: "heads" makes whole heads units, with grouped-query attention a key-value head
            with its queries; "width" makes index d of all heads one.
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
    """The groups of a model, and the labels that they were found by."""
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
) -> Walk:
    """Trace a model and carry labels through it."""
    return walked_through(model, trace(model, example_input), attention, streams)


def walked_through(model: nn.Module, traced: Traced, attention: Attention, streams: bool) -> Walk:
    """Labels carried through the graph of a model; the same graph every time gives the same."""
    named = parameter_names(model)
    parameters = [name for name, parameter in named.items() if parameter.is_floating_point()]
    buffers = tensors_of(model).keys() - named.keys()
    return walked(traced, parameters, buffers, attention=attention, streams=streams)


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
