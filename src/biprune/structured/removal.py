"""Which units of a pruned model may go, and which slices of its parameters go with them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from biprune.core.groups import Group, Slice
from biprune.core.parameters import own_name, parameter_names, unwrap
from biprune.structured.dependence import Dependence
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
            line = labels.owned.get((part.tensor, part.dim))
            if line is None or int(part.places.max()) >= len(line):
                raise ValueError(f"{part.tensor!r} is not what it was when its groups were found.")
            places = part.places[~keep[group.name]].flatten()
            lost = meant.setdefault(
                (part.tensor, part.dim), torch.zeros(len(line), dtype=torch.bool)
            )
            lost[places] = True
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


Read = dict[str, Tensor]


@torch.no_grad()
def units_to_keep(
    model: nn.Module,
    groups: Sequence[Group],
    inputs: tuple[Tensor, ...] | None,
    read_elsewhere: Collection[str] = (),
) -> dict[str, Tensor]:
    """For each group the units that have to stay, at least one.

    Without `inputs` only units go that all layers read with zeros, and of the groups named in
    `read_elsewhere` those that are zeros throughout. What goes may leave more behind
    that can go, so this repeats until nothing changes; a round costs a forward of `inputs`.
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
    model: nn.Module, groups: Sequence[Group], read: Read, read_elsewhere: Collection[str]
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
        gone = _all([is_zero(part) for part in group.slices], group.size)
        if readers and group.name not in read_elsewhere:
            gone |= _all([reads_zero(part) for part in readers], group.size)
        found[group.name] = gone
    return found


def _all(facts: Sequence[Tensor], size: int) -> Tensor:
    return torch.stack([torch.ones(size, dtype=torch.bool), *facts]).all(dim=0)


def _read(model: nn.Module, groups: Sequence[Group], inputs: tuple[Tensor, ...]) -> Read:
    """What each input channel of the reading layers holds whatever the input is, by weight name.

    The largest magnitude; NaN where it depends on the input. Empty if that cannot be told.
    """
    names = {id(parameter): name for name, parameter in parameter_names(model).items()}
    dims = {p.tensor: p.dim for group in groups for p in group.slices if p.role == "input"}
    read: Read = {}

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
