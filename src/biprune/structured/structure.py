"""The structure "group" of a model: its coupled groups, as chosen, with what they cost."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from biprune.core.groups import GROUP, Group, Groups, Measure
from biprune.core.parameters import Patterns, matching, parameter_names
from biprune.core.structure import Scope
from biprune.structured.find import found_in
from biprune.structured.grouping import Coupling
from biprune.structured.inputs import Attention, Inputs
from biprune.structured.labels import Labels
from biprune.structured.macs import product_macs, weight_macs


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
    total = sum(product.macs for product in labels.products.values())
    samples = next(r.shape[0] for n, r in labels.traced.results.items() if n.op == "placeholder")
    for product in labels.products.values():
        lines = ([owner.get(root) for root in roots[line].tolist()] for line in product.lines)
        owners = next((line for line in lines if any(line)), [])
        for name in filter(None, dict.fromkeys(owners)):
            share = product.macs * owners.count(name) // len(owners)
            shares[name] = shares.get(name, 0) + share
    # What is counted here is of a batch, and may leave out products by weights that are computed.
    total = max(total, whole * samples)
    found = {name: macs * whole // total for name, macs in shares.items()}
    return {**found, "": whole - sum(found.values())}


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
