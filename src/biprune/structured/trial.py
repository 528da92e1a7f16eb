"""Try groups before they are offered: is the model without units the one in which they are zero?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from biprune.core.files import first_line
from biprune.core.groups import Group
from biprune.core.parameters import unwrap
from biprune.structured.calls import Inputs, by_position, difference, inputs_to_compare, outputs
from biprune.structured.certificate import raised
from biprune.structured.graph import without_units
from biprune.structured.labels import Labels
from biprune.structured.removal import gone_atoms, tensors_of, zero_
from biprune.training.copying import copied
from biprune.training.seeding import derive_seed


@torch.no_grad()
def randomize_(model: nn.Module, seed: int) -> None:
    """Weights that keep signals near one, whatever the depth, and statistics of no batch."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if not parameter.is_floating_point():
            continue
        drawn = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            parameter.copy_(drawn * math.sqrt(2 / max(1, math.prod(parameter.shape[1:]))))
        else:
            parameter.copy_(drawn * 0.3)
    for module in model.modules():
        norm = hasattr(module, "eps") and isinstance(getattr(module, "weight", None), Tensor)
        names = ["running_var"] + ["weight"] * norm
        for values in (getattr(module, name, None) for name in names):
            if isinstance(values, Tensor):
                values.copy_(torch.rand(values.shape, generator=generator) + 0.5)
        if isinstance(mean := getattr(module, "running_mean", None), Tensor):
            mean.copy_(torch.randn(mean.shape, generator=generator) * 0.3)


SAMPLES = 2  # where any number will do
SHARES = (0.0, 0.5)  # of the units, but at least one
TOLERANCE = 1e-8  # of the largest output, in float64: deep nets blow rounding up to 1e-12


class Trial:
    """A copy of a model with random weights, as a graph on which groups are tried.

    Costs four forwards of two samples for each call of `objection`.
    """

    def __init__(self, model: nn.Module, example_input: Inputs, labels: Labels, seed: int) -> None:
        own = copied(unwrap(model)).float().cpu().eval()
        randomize_(own, derive_seed(seed, 1))
        self._model, self._labels, self._seed = own, labels, seed
        called, tensors = by_position(own, example_input)
        inputs = tuple(
            t.detach().cpu().float() if t.is_floating_point() else t.cpu() for t in tensors
        )
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
                if objection := self._objection_to(groups, keep):
                    return objection
            except ValueError as error:
                return error
            except Exception as error:  # whatever a forward raises
                line = first_line(error)
                return ValueError(f"the model does not run without some of it ({line})")
        return None

    def _objection_to(
        self, groups: Sequence[Group], keep: Mapping[str, Tensor]
    ) -> ValueError | None:
        randomize_(self._model, derive_seed(self._seed, 1))
        zero_(self._model, groups, keep)
        gone = gone_atoms(self._labels, groups, keep)
        # One after the other, and zeroed in place: models are large.
        expected = self._outputs(torch.zeros_like(gone))
        found = self._outputs(gone)
        error = difference(expected, found)
        if error <= TOLERANCE or error != error:  # no finite numbers: nothing can be seen
            return None
        return ValueError("removing some of it is not the same as setting it to zero")

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
