"""The structure "group" of a model: its coupled groups, as chosen, with what they cost."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from biprune.deploy.coupling.find import Coupling, find_groups
from biprune.deploy.inputs import Inputs
from biprune.deploy.macs import product_macs, weight_macs
from biprune.deploy.surgery.resize import kept_indices, resize_
from biprune.groups import GROUP, Group, Groups, Measure
from biprune.parameters import Patterns, matching, parameter_names, unwrap
from biprune.structure import Scope


def group_structure(
    model: nn.Module,
    example_input: Inputs,
    *,
    scope: Scope = "layer",
    measure: Measure = "units",
    round_to: int = 1,
    include: Patterns = None,
    exclude: Patterns = None,
) -> tuple[Groups, dict[str, str]]:
    """The groups of `model`, and what is left out of them by name, with the reason.

    `include` takes the groups that one of the named parameters writes, `exclude` leaves out those
    that it writes: a layer that is left alone keeps what is coupled with it. So do frozen layers.
    """
    found = chosen(model, find_groups(model, example_input), include, exclude)
    if not found.groups:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in found.left_out.items())
        raise ValueError(
            "The model has no coupled groups that can be removed"
            f"{f' ({reasons})' if reasons else ''}. Prune it by another structure."
        )
    macs, products = _costs(model, found.groups, example_input)
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


def _costs(
    model: nn.Module, groups: Sequence[Group], example_input: Inputs
) -> tuple[dict[str, int], dict[str, int]]:
    """Multiply-adds by weight, and those of activations alone by the group they grow with.

    Which group that is, is found by cutting each to a half: a forward each, where there are any.
    """
    macs, whole = weight_macs(model, example_input), product_macs(model, example_input)
    if not whole:
        return macs, {}
    products: dict[str, int] = {}
    for group in groups:
        left = group.size - group.size // 2
        keep = {group.name: torch.arange(group.size) < left}
        small = copy.deepcopy(unwrap(model))
        shapes = {name: p.shape for name, p in parameter_names(small).items()}
        resize_(small, kept_indices([group], keep, shapes))
        saved = whole - product_macs(small, example_input)
        if saved and group.size > 1:
            products[group.name] = saved * group.size // (group.size - left)
    return macs, {**products, "": whole - sum(products.values())}


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
