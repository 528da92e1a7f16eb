"""Set units to zero, or cut parameters to what is left and mend the modules that own them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from biprune.deploy.surgery.fewer_heads import way_without, without_heads
from biprune.deploy.surgery.heads import find_heads
from biprune.deploy.surgery.layers import mend
from biprune.groups import Group
from biprune.parameters import parameter_names, unwrap

Kept = Mapping[str, Mapping[int, Tensor]]

_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


@torch.no_grad()
def resize_(model: nn.Module, kept: Kept) -> None:
    """Keep these indices along these dimensions of these parameters, in place.

    Sizes, groups, statistics and numbers of heads of the owning modules follow. Parameters stay the
    same objects, with their layout and `requires_grad`, but lose their gradients; attention that
    cannot do with fewer heads is replaced by a module of ours with the same state, and
    `attention.replaced_modules` says which. What is coupled with what is the caller's business: see
    `coupling`. A ValueError may leave the model half cut.
    """
    model = unwrap(model)
    parameters = parameter_names(model)
    _check(parameters, kept)
    cut = {id(parameters[name]): name for name in kept}
    heads = [each for each in find_heads(model).values() if id(each.first()) in cut]
    ways = [way_without(each) for each in heads]
    owners = _owners(model, cut)
    for name, dims in kept.items():
        parameters[name].data = _selected(parameters[name].data, dims)
        parameters[name].grad = None
    made = {id(each.module): each for each in heads}
    for owner, attributes in owners:
        rows = {a: kept[name][0] for a, name in attributes.items() if 0 in kept[name]}
        _mend(owner, rows, attributes, replaced=id(owner) in made)
    for each, way in zip(heads, ways, strict=True):
        rows = kept[cut[id(each.first())]].get(0)
        if rows is not None:
            _replace(model, each.module, without_heads(each, rows.cpu(), way))


def _owners(model: nn.Module, cut: Mapping[int, str]) -> list[tuple[nn.Module, dict[str, str]]]:
    """Modules that own a parameter of `cut`, with its attribute and its name."""
    found = []
    for module in model.modules():
        own = module._parameters.items()
        attributes = {a: cut[id(p)] for a, p in own if p is not None and id(p) in cut}
        if attributes:
            found.append((module, attributes))
    return found


def _mend(
    owner: nn.Module, rows: Mapping[str, Tensor], attributes: Mapping[str, str], replaced: bool
) -> None:
    first = next(iter(attributes.values()))
    try:
        known = replaced or mend(owner, {name: index.cpu() for name, index in rows.items()})
    except ValueError as error:
        raise ValueError(f"{first!r} cannot be cut like that: {error}.") from None
    if isinstance(owner, nn.LayerNorm | nn.RMSNorm):
        raise ValueError(f"{first!r} belongs to a norm whose statistics are over all of it.")
    if not known and type(owner).__module__.startswith("torch.nn"):
        # A parameter of the user's own module, such as a layer scale, needs no mending.
        raise ValueError(
            f"{first!r} belongs to nn.{type(owner).__name__}, which biprune cannot make smaller."
        )


def _check(parameters: Mapping[str, nn.Parameter], kept: Kept) -> None:
    for name, dims in kept.items():
        if name not in parameters:
            raise ValueError(f"The model has no parameter {name!r} to cut.")
        for dim, index in dims.items():
            shape = tuple(parameters[name].shape)
            length = shape[dim] if 0 <= dim < len(shape) else 0
            ordered = index.ndim == 1 and bool((index[1:] > index[:-1]).all())
            if not (len(index) and ordered and index[0] >= 0 and index[-1] < length):
                raise ValueError(
                    f"The kept indices of {name!r} along dimension {dim} must be some of its "
                    f"{length}, in order: its shape is {shape}."
                )


def _selected(values: Tensor, dims: Mapping[int, Tensor]) -> Tensor:
    chosen = values
    for dim, index in dims.items():
        chosen = chosen.index_select(dim, index.to(values.device))
    layout = _LAYOUTS.get(values.ndim, torch.contiguous_format)
    if not values.is_contiguous() and values.is_contiguous(memory_format=layout):
        return chosen.contiguous(memory_format=layout)
    return chosen.contiguous()


def _replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put `new` wherever `old` is a child."""
    if old is model and new is not old:
        raise ValueError("A model that is one attention module cannot lose heads: wrap it.")
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
    for encoder in model.modules():
        if isinstance(encoder, nn.TransformerEncoder) and any(m is new for m in encoder.modules()):
            encoder.use_nested_tensor = False  # its fused kernels know only their own attention


def kept_indices(
    groups: Sequence[Group], keep: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]]
) -> dict[str, dict[int, Tensor]]:
    """What `resize_` needs to remove the units for which `keep` is False."""
    along: dict[str, dict[int, Tensor]] = {}
    for group in groups:
        if bool(keep[group.name].all()):
            continue
        for part in group.slices:
            mine = part.along(keep[group.name], shapes[part.tensor][part.dim])
            dims = along.setdefault(part.tensor, {})
            dims[part.dim] = dims[part.dim] & mine if part.dim in dims else mine
    return {n: {d: m.nonzero().flatten() for d, m in dims.items()} for n, dims in along.items()}


@torch.no_grad()
def zero_(model: nn.Module, groups: Sequence[Group], keep: Mapping[str, Tensor]) -> None:
    """Set every slice of the units for which `keep` is False to +0.0."""
    parameters = parameter_names(model)
    for group in groups:
        for part in group.slices:
            values = parameters[part.tensor]
            gone = ~part.spread(keep[group.name], values.shape)
            values.masked_fill_(gone.to(values.device), 0.0)
