"""Which units of a pruned model may go, and which slices of its tensors go with them.

A forward on some inputs cannot show that a number is the same for all: a rectifier may be shut on
these and open on others. So inputs are NaN in `Dependence`, and whatever an input can change is NaN
in turn, number by number; what is left are constants. The operations themselves carry most of it,
and where they do not it is put right. Comparisons, `nan_to_num` and integers would lose it.
Products would spread it too far: zero times NaN is zero here, because the inputs that NaN stands
for are finite. The outputs of an operation that is not known depend on all that it reads.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from biprune.core.groups import Group, Slice
from biprune.core.parameters import own_name, parameter_names, unwrap
from biprune.structured.labels import Labels
from biprune.training.seeding import forked_rng

Keep = Mapping[str, Tensor]  # which units stay, by group


@torch.no_grad()
def zero_(model: nn.Module, groups: Sequence[Group], keep: Keep) -> None:
    """Set every slice of the units for which `keep` is False to +0.0."""
    parameters = parameter_names(model)
    for group in groups:
        for part in group.slices:
            values = parameters[part.tensor]
            gone = ~part.spread(keep[group.name], values.shape)
            values.masked_fill_(gone.to(values.device), 0.0)


def gone_atoms(labels: Labels, groups: Sequence[Group], keep: Keep) -> Tensor:
    """For every atom whether it goes with the units for which `keep` is False.

    Raises:
        ValueError: The groups are not those of the model: more than these units would go.
    """
    roots = labels.atoms.roots()
    gone = torch.zeros(len(roots), dtype=torch.bool)
    meant: dict[tuple[str, int], Tensor] = {}
    for group in groups:
        for part in group.slices:
            key = part.tensor, part.dim
            line = labels.owned.get(key)
            if line is None or int(part.places.max()) >= len(line):
                raise ValueError(f"{part.tensor!r} is not what it was when its groups were found.")
            places = part.places[~keep[group.name]].flatten()
            meant.setdefault(key, torch.zeros(len(line), dtype=torch.bool))[places] = True
            gone[roots[line[places]]] = True
    gone = gone[roots]
    frozen = labels.atoms.reasons()
    for key, lost in meant.items():
        line = labels.owned[key]
        if not torch.equal(gone[line], lost) or any(int(r) in frozen for r in roots[line[lost]]):
            raise ValueError(
                f"Units of {key[0]!r} cannot go by themselves: the groups are not those of this "
                "model. Find them again with `find_groups`."
            )
    return gone


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by the user's names; tied ones go by their first."""
    own = unwrap(model)
    named = [*own.named_parameters(), *own.named_buffers()]
    return {own_name(name): tensor for name, tensor in named}


def kept_indices(labels: Labels, gone: Tensor) -> dict[str, dict[int, Tensor]]:
    """The indices that are left of parameters and buffers, where some are gone."""
    found: dict[str, dict[int, Tensor]] = {}
    for (name, dim), line in labels.owned.items():
        if bool(gone[line].any()):
            found.setdefault(name, {})[dim] = (~gone[line]).nonzero().flatten()
    return found


@torch.no_grad()
def units_to_keep(
    model: nn.Module,
    groups: Sequence[Group],
    inputs: tuple[Tensor, ...] | None,
    read_elsewhere: Collection[str] = (),
) -> dict[str, Tensor]:
    """For each group the units that have to stay, at least one.

    What goes may leave more behind that can go, so this repeats until nothing changes.

    Args:
        model: The pruned model; it is not changed.
        groups: Its groups.
        inputs: A batch. Units go whose every reader gets zeros whatever the input. Each round
            costs a forward of it. Without it, units go that every reader has zero weights for.
        read_elsewhere: Names of groups that not only layers read. Of these only units go that are
            zeros throughout.
    """
    model = copy.deepcopy(model)
    keep = {group.name: torch.ones(group.size, dtype=torch.bool) for group in groups}
    while True:
        read = {} if inputs is None else _read(model, groups, inputs)
        removable = _removable(model, groups, read, read_elsewhere)
        before = {name: units.clone() for name, units in keep.items()}
        for group in groups:
            keep[group.name] &= ~removable[group.name]
            keep[group.name][0] |= not bool(keep[group.name].any())
        if all(torch.equal(keep[name], before[name]) for name in keep):
            return keep
        zero_(model, groups, keep)


def _removable(
    model: nn.Module,
    groups: Sequence[Group],
    read: Mapping[str, Tensor],
    read_elsewhere: Collection[str],
) -> dict[str, Tensor]:
    parameters = parameter_names(model)

    def is_zero(part: Slice) -> Tensor:
        return part.of(parameters[part.tensor]).eq(0).all(dim=1).cpu()

    def reads_zero(part: Slice) -> Tensor:
        if part.tensor not in read:
            return is_zero(part)
        return is_zero(part) | read[part.tensor][part.places].eq(0).all(dim=1)

    found = {}
    for group in groups:
        readers = [part for part in group.slices if part.role == "input"]
        gone = torch.stack([is_zero(part) for part in group.slices]).all(dim=0)
        if readers and group.name not in read_elsewhere:
            gone |= torch.stack([reads_zero(part) for part in readers]).all(dim=0)
        found[group.name] = gone
    return found


def _read(
    model: nn.Module, groups: Sequence[Group], inputs: tuple[Tensor, ...]
) -> dict[str, Tensor]:
    """What each input channel of the reading layers holds whatever the input is, by weight name.

    The largest magnitude; NaN where it depends on the input. Empty if that cannot be told.
    """
    names = {id(parameter): name for name, parameter in parameter_names(model).items()}
    dims = {p.tensor: p.dim for group in groups for p in group.slices if p.role == "input"}
    read: dict[str, Tensor] = {}

    def watch(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        weight: Tensor = layer.weight  # pyright: ignore[reportAssignmentType]
        name = names[id(weight)]
        channels = inputs[0].movedim(-(weight.ndim - 1), 0).flatten(1).abs()
        largest = channels.amax(dim=1).view(-1, weight.shape[dims[name]]).amax(dim=0).cpu()
        read[name] = torch.maximum(read.get(name, largest), largest)

    layers = [m for m in model.modules() if isinstance(m, _ConvNd | nn.Linear)]
    watched = [layer for layer in layers if names.get(id(layer.weight)) in dims]
    handles = [layer.register_forward_pre_hook(watch) for layer in watched]
    try:
        with forked_rng(()), Dependence(inputs) as dependence:
            model(*dependence.inputs)
    except Exception:  # the forward goes by numbers, or refuses NaN
        return {}
    finally:
        for handle in handles:
            handle.remove()
    return read


# Operations that carry NaN by themselves, and only where it belongs.
_CARRYING = frozenset(
    (
        *("cat", "stack", "copy_", "_to_copy", "clone", "fill_", "zero_", "_unsafe_view"),
        *("repeat", "roll", "flip", "index", "index_select", "gather"),
        *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "native_channel_shuffle"),
        *("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d"),
        *("replication_pad1d", "replication_pad2d", "replication_pad3d"),
        *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
        # One NaN among the numbers makes the result NaN.
        *("sum", "mean", "var", "amax", "amin", "linalg_vector_norm", "_softmax", "_log_softmax"),
        *("glu", "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d"),
        *("upsample_trilinear3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
        *("cudnn_batch_norm", "native_group_norm", "native_layer_norm"),
        *("avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d"),
        *("_adaptive_avg_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices"),
        *("adaptive_max_pool2d", "adaptive_max_pool3d"),
    )
)
_ELEMENTWISE = frozenset(("hardswish", "hardswish_", "_prelu_kernel"))  # not tagged as such
# Products: where the two factors are among the arguments, and what is added to them if anything.
_PRODUCTS: dict[str, tuple[int, int, int | None]] = {
    "convolution": (0, 1, 2),
    "addmm": (1, 2, 0),
    "mm": (0, 1, None),
    "bmm": (0, 1, None),
    "mul": (0, 1, None),
}


class UndecidedError(Exception):
    """The forward asked for a number that depends on the input."""


class Dependence(TorchDispatchMode):
    """While it is entered, floats that depend on `inputs` are NaN, and others as they always are.

    Numbers drawn at random count as dependent.

    Raises:
        UndecidedError: The course of the forward, or whether a tensor is empty, depends on them.
    """

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        # Integers and booleans cannot be NaN: such a tensor depends as a whole, with all views of
        # its storage. The tensors are kept, so that no storage is used twice.
        self._dependent: dict[int, Tensor] = {}
        self.inputs = tuple(
            torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor
            for tensor in inputs
        )
        for tensor in self.inputs:
            self._note(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        marks = [tensor.isnan() for tensor in read if tensor.is_floating_point()]
        marks = [mark for mark in marks if bool(mark.any())]
        whole = any(_storage(t) in self._dependent for t in read if not t.is_floating_point())
        whole |= torch.Tag.nondeterministic_seeded in func.tags
        if not marks and not whole:
            return func(*args, **kwargs)
        if not whole and name in _PRODUCTS and _is_product(name, args):
            return _multiplied(func, args, kwargs)
        result = func(*args, **kwargs)
        elementwise = name in _ELEMENTWISE or torch.Tag.pointwise in func.tags
        whole |= not (elementwise or func.is_view or name in _CARRYING)
        written = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        if not any(tensor.numel() for tensor in written):
            raise UndecidedError(f"{name} of numbers that depend on the input")
        for tensor in written:
            if not tensor.is_floating_point():
                self._note(tensor)
            elif whole:
                tensor.fill_(torch.nan)
            elif elementwise:
                for mark in marks:
                    tensor.masked_fill_(mark.expand(tensor.shape), torch.nan)
        return result

    def _note(self, tensor: Tensor) -> None:
        if not tensor.is_floating_point():
            self._dependent[_storage(tensor)] = tensor


def _is_product(name: str, args: tuple[Any, ...]) -> bool:
    factors = [args[place] for place in _PRODUCTS[name][:2]]
    return all(isinstance(each, Tensor) and each.is_floating_point() for each in factors)


def _multiplied(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A product in which zero times NaN is zero."""
    one, other, added = _PRODUCTS[func.overloadpacket.__name__]
    places = [one, other] + [p for p in (added,) if p is not None and args[p] is not None]

    def product(values: Mapping[int, Tensor], **options: Any) -> Tensor:
        return func(*(values.get(place, arg) for place, arg in enumerate(args)), **options)

    result = product({place: args[place].nan_to_num(nan=0.0) for place in places}, **kwargs)
    # How many terms of each sum depend: those in which one factor does and the other is not zero.
    marks = {place: args[place].isnan().float() for place in places}
    for factor in (one, other):
        terms = product({**marks, factor: args[factor].ne(0).float()})
        # Whole numbers, but some ways to convolve round them.
        result.masked_fill_(terms > 0.5, torch.nan)
    return result


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
