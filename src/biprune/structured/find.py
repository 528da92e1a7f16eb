"""The coupled groups of a model: found by labels, tried, and made a structure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from torch import fx, nn

from biprune.core.groups import GROUP, Group, Groups, Measure
from biprune.core.parameters import Patterns, matching, parameter_names, unwrap
from biprune.core.structure import Scope
from biprune.structured.atoms import along, varies
from biprune.structured.calls import Attention, Inputs, by_position, check_attention, check_runs
from biprune.structured.graph import NoBoxError
from biprune.structured.grouping import Coupling, coupling
from biprune.structured.labels import Labels, Product
from biprune.structured.macs import product_macs, weight_macs
from biprune.structured.removal import tensors_of
from biprune.structured.rules import is_moving
from biprune.structured.trace import Traced, op_name, trace
from biprune.structured.trial import Trial
from biprune.structured.walk import Walk, walked
from biprune.training.batches import evaluation_mode
from biprune.training.copying import refuse_meta

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
            with its queries; "queries" makes each head of queries one, whose key and value stay;
            "width" makes index d of all heads one.
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
    """The groups of `model`, and what is left out of them by name, with the reason.

    `include` takes the groups that one of the named parameters writes, `exclude` leaves out those
    that it writes: a layer that is left alone keeps what is coupled with it. So do frozen layers.
    """
    found, labels = found_in(model, example_input, attention, streams, seed=0)
    found = chosen(model, found, include, exclude)
    if not found.groups:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.left_out.items())
        raise ValueError(
            "The model has no coupled groups that can be removed"
            f"{f' ({reasons})' if reasons else ''}. Prune it by another structure."
        )
    structure = Groups(
        *GROUP,
        scope=scope,
        groups=found.groups,
        shapes={name: tuple(p.shape) for name, p in parameter_names(model).items()},
        macs=weight_macs(model, example_input),
        products=_products(labels, found.groups, product_macs(model, example_input)),
        measure=measure,
        round_to=round_to,
    )
    return structure, found.left_out


def _products(labels: Labels, groups: tuple[Group, ...], whole: int) -> dict[str, int]:
    """Multiply-adds of activations by one another, by the group that they grow with.

    `whole` is all of them, for one sample. A product that grows along several dimensions counts to
    the first, and there to each group by the part that it has of it.
    """
    if not whole:
        return {}
    roots = labels.atoms.roots()
    owner = {
        int(root): group.name
        for group in groups
        for root in roots[labels.owned[group.slices[0].tensor, group.slices[0].dim]][
            group.slices[0].places[:, 0]
        ]
    }
    shares: dict[str, int] = {}
    products = [*labels.products.values(), *_by_computed_weights(labels)]
    total = sum(product.macs for product in products)
    samples = next(r.shape[0] for n, r in labels.traced.results.items() if n.op == "placeholder")
    for product in products:
        lines = ([owner.get(root) for root in roots[line].tolist()] for line in product.lines)
        owners = next((line for line in lines if any(line)), [])
        for name in filter(None, dict.fromkeys(owners)):
            share = product.macs * owners.count(name) // len(owners)
            shares[name] = shares.get(name, 0) + share
    # What is counted here is of a batch, and may leave out some products by weights.
    total = max(total, whole * samples)
    found = {name: macs * whole // total for name, macs in shares.items()}
    return {**found, "": whole - sum(found.values())}


def _by_computed_weights(labels: Labels) -> Iterator[Product]:
    """Products by weights that are computed of parameters, as weight norm does.

    Each grows with the channels that it writes and reads. Those of weights that are parameters are
    counted to these.
    """
    for node in labels.traced.module.graph.nodes:
        if not op_name(node).startswith("conv") or not isinstance(node.args[1], fx.Node):
            continue
        source = node.args[1]
        while is_moving(source) and isinstance(source.args[0], fx.Node):
            source = source.args[0]
        if source.op == "get_attr":
            continue
        result, weight = labels.carried[node], labels.carried[node.args[1]]
        channel = len(result.shape) - len(weight.shape) + 1
        planes = (*result.planes, *labels.carried[node.all_input_nodes[0]].planes)
        settled = (labels.atoms.settled(plane.labels) for plane in planes)
        lines = [along(own, channel) for own in settled if varies(own) == (channel,)]
        written = 1 if "transpose" in op_name(node) else 0
        macs = prod(result.shape) * prod(weight.shape) // weight.shape[written]
        yield Product(macs, lines)


def chosen(
    model: nn.Module, found: Coupling, include: Patterns = None, exclude: Patterns = None
) -> Coupling:
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
