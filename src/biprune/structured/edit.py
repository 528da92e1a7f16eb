"""The user's own module with smaller tensors, and the numbers that it keeps beside them.

Tensors are cut by what labels say. Numbers follow in three steps, of which the first that certifies
is taken: those that layers of torch keep; those that are called heads; and those that are a size
which was cut. A number in a file is set only where the module has one of that name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from biprune.core.groups import Group
from biprune.core.parameters import own_name, unwrap
from biprune.structured.grouping import common_module
from biprune.structured.labels import Labels
from biprune.structured.removal import Keep, kept_indices
from biprune.structured.runs import box
from biprune.structured.trace import op_name
from biprune.structured.walk import module_path

Kept = Mapping[str, Mapping[int, Tensor]]
Numbers = dict[str, dict[str, int]]  # by module, by attribute
Numbered = Literal["layers", "heads", "sizes"]

_STEPS = ("stride", "dilation", "kernel_size")  # numbers that are no amount of padding
_LAYOUTS = {4: torch.channels_last, 5: torch.channels_last_3d}


@torch.no_grad()
def resize_(model: nn.Module, kept: Kept, numbers: Mapping[str, Mapping[str, int]]) -> None:
    """Cut a model's tensors in place, and set the numbers that its modules keep.

    Parameters stay the same objects, with their layout and `requires_grad`, but lose their
    gradients. Sizes that layers of torch keep follow by themselves.

    Args:
        model: The model.
        kept: The indices that stay, by parameter or buffer and by dimension.
        numbers: The new numbers, by module and by attribute.

    Raises:
        ValueError: The model has no such tensor, index or number; it may be half cut then.
    """
    model = unwrap(model)
    owners = _owners(model)
    for name, dims in kept.items():
        if name not in owners:
            raise ValueError(f"The model has no tensor {name!r} to cut.")
        held = owners[name]
        if isinstance(getattr(*held[0]), nn.Parameter):
            held = held[:1]  # the same object wherever it is tied
        for module, attribute in held:
            _cut_(module, attribute, name, dims)
    for path, own in numbers.items():
        try:
            attributes = vars(model.get_submodule(path))
        except AttributeError:
            raise ValueError(f"The model has no module {path!r}.") from None
        for attribute, value in own.items():
            if type(attributes.get(attribute)) is not int:
                raise ValueError(f"{path!r} has no number `{attribute}` to set.")
            attributes[attribute] = value
    for module in model.modules():
        _mend(module)


def _owners(model: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """Where each parameter and buffer is held, by its first name."""
    first: dict[int, str] = {}
    found: dict[str, list[tuple[nn.Module, str]]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        for attribute, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None:
                name = own_name(f"{path}.{attribute}" if path else attribute)
                held = found.setdefault(first.setdefault(id(tensor), name), [])
                if (module, attribute) not in held:
                    held.append((module, attribute))
    return found


def _cut_(module: nn.Module, attribute: str, name: str, dims: Mapping[int, Tensor]) -> None:
    tensor: Tensor = getattr(module, attribute)
    for dim, index in dims.items():
        length = tensor.shape[dim] if 0 <= dim < tensor.ndim else 0
        ordered = index.ndim == 1 and bool((index[1:] > index[:-1]).all())
        if not (len(index) and ordered and index[0] >= 0 and index[-1] < length):
            raise ValueError(
                f"The kept indices of {name!r} along dimension {dim} must be some of its "
                f"{length}, in order: its shape is {tuple(tensor.shape)}."
            )
    if isinstance(tensor, nn.Parameter):
        tensor.data, tensor.grad = _selected(tensor.data, dims), None
    else:
        module._buffers[attribute] = _selected(tensor, dims)


def _selected(values: Tensor, dims: Mapping[int, Tensor]) -> Tensor:
    chosen = values
    for dim, index in dims.items():
        chosen = chosen.index_select(dim, index.to(values.device))
    layout = _LAYOUTS.get(values.ndim, torch.contiguous_format)
    if values.is_contiguous() or not values.is_contiguous(memory_format=layout):
        layout = torch.contiguous_format
    return chosen.contiguous(memory_format=layout)


def _mend(module: nn.Module) -> None:
    """Let the sizes that a layer of torch keeps agree with its tensors."""
    if isinstance(module, _ConvNd):
        first, second = module.weight.shape[0], module.weight.shape[1] * module.groups
        pair = (first, second) if module.transposed else (second, first)
        module.in_channels, module.out_channels = pair
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = module.weight.shape
    elif isinstance(module, nn.PReLU):
        module.num_parameters = len(module.weight)
    elif isinstance(module, _NormBase | nn.GroupNorm):
        tensors = (*module._parameters.values(), *module._buffers.values())
        name = "num_channels" if isinstance(module, nn.GroupNorm) else "num_features"
        if sizes := [len(tensor) for tensor in tensors if tensor is not None and tensor.ndim]:
            setattr(module, name, sizes[0])


def numbers_of(
    model: nn.Module,
    labels: Labels,
    gone: Tensor,
    groups: Sequence[Group],
    keep: Keep,
    how: Numbered,
) -> Numbers:
    """The numbers that modules keep, for what is left of their tensors when atoms are `gone`."""
    modules = dict(unwrap(model).named_modules())
    found: Numbers = {}
    _groups_of_layers(modules, kept_indices(labels, gone), found)
    _paddings(modules, labels, gone, found)
    if how == "layers":
        return found
    for group in groups:
        left, size = int(keep[group.name].sum()), group.size
        if left == size:
            continue
        cut = [part.places.numel() for part in group.slices]
        for path in _around(group, modules):
            for attribute, value in vars(modules[path]).items():
                if type(value) is not int:
                    continue
                if _counts_heads(attribute, value, size) or (how == "sizes" and value in cut):
                    whole = found.setdefault(path, {}).get(attribute, value)
                    found[path][attribute] = whole - value * (size - left) // size
    return found


def _counts_heads(attribute: str, value: int, size: int) -> bool:
    named = "head" in attribute and "dim" not in attribute and "size" not in attribute
    return named and value > 1 and value % size == 0


def _around(group: Group, modules: Mapping[str, nn.Module]) -> list[str]:
    """The user's modules that hold what writes a group, and those around them.

    They go up to the innermost one that holds all of the group.
    """
    written = [part.tensor.rpartition(".")[0] for part in group.filters]
    common = common_module([part.tensor.rpartition(".")[0] for part in group.slices])
    paths = dict.fromkeys(written)
    for path in written:
        while path != common and path:
            path = path.rpartition(".")[0]
            paths[path] = None
    return [
        path
        for path in paths
        if path in modules and not type(modules[path]).__module__.startswith("torch.nn")
    ]


def _groups_of_layers(modules: Mapping[str, nn.Module], kept: Kept, found: Numbers) -> None:
    """Groups of convolutions and group norms, as many as are left of them."""
    for path, module in modules.items():
        own = kept.get(own_name(f"{path}.weight" if path else "weight"), {})
        if isinstance(module, _ConvNd) and module.groups > 1 and 0 in own:
            loses_groups = module.groups >= module.in_channels // module.groups
            left = module.groups * len(own[0]) // module.weight.shape[0]
            found.setdefault(path, {})["groups"] = left if loses_groups else module.groups
        if isinstance(module, nn.GroupNorm) and 0 in own:
            left = module.num_groups * len(own[0]) // module.num_channels
            found.setdefault(path, {})["num_groups"] = left


def _paddings(
    modules: Mapping[str, nn.Module], labels: Labels, gone: Tensor, found: Numbers
) -> None:
    """How many zero channels a module pads with, before and after, if it keeps both numbers."""
    for node in labels.traced.module.graph.nodes:
        path = module_path(node).removeprefix("model").removeprefix(".")
        if op_name(node) not in ("pad", "constant_pad_nd") or path not in modules:
            continue
        carried, padding = labels.carried[node], node.args[1]
        for dim, index in (box(labels, carried, gone) or {}).items():
            place = 2 * (len(carried.shape) - 1 - dim)
            amounts = padding[place : place + 2]
            numbers = {n: value for n, value in vars(modules[path]).items() if type(value) is int}
            names = [n for n, value in numbers.items() if value in amounts and n not in _STEPS]
            if len(names) == 2 and sum(amounts):
                end = carried.shape[dim] - amounts[1]
                left = int((index < amounts[0]).sum()), int((index >= end).sum())
                found.setdefault(path, {}).update(zip(names, left, strict=True))
