"""Units as slices of parameters: set to zero, or gone, with all that is tied to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from biprune.core.groups import Group
from biprune.core.parameters import own_name, parameter_names, unwrap
from biprune.structured.labels import Labels

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
