"""Try a group before it is offered: is the model without the units the one in which they are zero?

Nobody knows every operation that a model may contain, so nothing is believed: half of the units of
a group are zeroed in a copy with random weights, and removed from another. Random, because a fresh
or trained model may hide a mistake behind weights that are zero.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from biprune.deploy.outputs import difference, first_line, inputs_to_compare, outputs
from biprune.deploy.random_weights import randomize_
from biprune.deploy.surgery.resize import kept_indices, resize_, zero_
from biprune.groups import Group
from biprune.parameters import parameter_names
from biprune.seeding import derive_seed

SAMPLES = 2
DRAWS = 4  # of the units to remove, until one shows in the outputs
TOLERANCE = 2**10 * torch.finfo(torch.float32).eps  # of the largest output; rounding is near 2**3


class Trial:
    """A copy of a model with random weights, on which groups are tried.

    `model` must be in float32 and eval mode. Costs two forwards of two samples, and two for each
    call of `objection`, or up to eight where the removed units happen to be of no consequence.
    """

    def __init__(self, model: nn.Module, inputs: tuple[Tensor, ...], seed: int) -> None:
        self._seed = seed
        self._model = copy.deepcopy(model)
        randomize_(self._model, derive_seed(seed, 1))
        self._inputs = inputs_to_compare(self._model, inputs, SAMPLES, derive_seed(seed, 0))
        self._dense = outputs(self._model, self._inputs, seed)

    def objection(self, groups: Sequence[Group]) -> str | None:
        """Why the units of these groups cannot be removed; None if they can."""
        for draw in range(DRAWS):
            keep = {g.name: self._half(g, draw, place) for place, g in enumerate(groups)}
            masked = copy.deepcopy(self._model)
            zero_(masked, groups, keep)
            expected = outputs(masked, self._inputs, self._seed)
            if objection := self._objection_to(groups, keep, expected):
                return objection
            if difference(self._dense, expected) > TOLERANCE:
                return None
        return "whether it can be removed does not show in the model's output"

    def _objection_to(
        self, groups: Sequence[Group], keep: Mapping[str, Tensor], expected: list[Tensor]
    ) -> str | None:
        """The same for some units, whose removal should give the outputs `expected`."""
        small = copy.deepcopy(self._model)
        shapes = {name: parameter.shape for name, parameter in parameter_names(small).items()}
        try:
            resize_(small, kept_indices(groups, keep, shapes))
        except ValueError as error:
            return str(error).rstrip(".")
        try:
            found = outputs(small, self._inputs, self._seed)
        except Exception as error:  # whatever a forward of the user's raises
            return f"the model does not run without some of it ({first_line(error)})"
        error = difference(expected, found)
        if math.isinf(error):
            return "it is part of the model's output"
        if math.isnan(error):
            return "with random weights the model gives no finite numbers, even for `example_input`"
        if error > TOLERANCE:
            return "removing some of it is not the same as setting it to zero"
        return None

    def _half(self, group: Group, draw: int, place: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive_seed(self._seed, 2, draw, place))
        keep = torch.zeros(group.size, dtype=torch.bool)
        keep[torch.randperm(group.size, generator=generator)[: (group.size + 1) // 2]] = True
        return keep
