"""From what a user asks for to a target: how much, in which units, in which tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from biprune.core.checks import check_whole
from biprune.core.groups import Measure
from biprune.core.parameters import Patterns, not_in_blocks, num_weights, prunable, unexplained
from biprune.core.selection import check_sparsity
from biprune.core.structure import Scope, Structure, get_structure
from biprune.core.uses import product_weights
from biprune.data import Dataset
from biprune.methods.base import Target
from biprune.structured.calls import Attention, Inputs, check_attention
from biprune.training.batches import Batch, device_of, evaluation_mode, to_device
from biprune.training.copying import refuse_meta
from biprune.training.seeding import forked_rng
from biprune.training.setup import Setup

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """What the user asked for; the fields are arguments of `prune`.

    Exactly one of `sparsity` and `budget` is given, or neither for n:m.
    """

    sparsity: float | None
    structure: str = "weight"
    scope: Scope | None = None
    budget: Mapping[str, float] | None = None
    round_to: int = 1
    include: Patterns = None
    exclude: Patterns = None
    allow_empty: bool = False
    attention: Attention = "heads"
    streams: bool = False

    def __post_init__(self) -> None:
        check_whole("round_to", self.round_to, at_least=1)
        units = get_structure(self.structure, self.scope)
        if units.spans_tensors and self.allow_empty:
            raise ValueError(
                "`allow_empty` does not work with structure 'group': a layer without any filter "
                "cannot be built."
            )
        check_attention(self.attention)
        if self._of_groups and not units.spans_tensors:
            raise ValueError(
                f"`{next(iter(self._of_groups))}` counts what can be removed from a model, which "
                f'is known for structure="group" alone, got structure={self.structure!r}.'
            )
        _ = self.removed  # raises on bad values before anything runs

    @property
    def _of_groups(self) -> dict[str, Any]:
        """The options for groups that differ from their defaults."""
        said = {
            "budget": dict(self.budget) if isinstance(self.budget, Mapping) else self.budget,
            "round_to": self.round_to,
            "attention": self.attention,
            "streams": self.streams,
        }
        usual = {"budget": None, "round_to": 1, "attention": "heads", "streams": False}
        return {name: value for name, value in said.items() if value != usual[name]}

    @property
    def measure(self) -> Measure:
        """What `removed` is a fraction of."""
        if self.budget is None:
            return "units"
        given = list(self.budget) if isinstance(self.budget, Mapping) else []
        if len(given) != 1 or given[0] not in ("macs", "params"):
            raise ValueError(
                '`budget` must be {"macs": fraction} or {"params": fraction}, the fraction kept, '
                f"got {self.budget!r}."
            )
        return given[0]

    @property
    def removed(self) -> float:
        """The fraction to remove, of units or of what `measure` counts."""
        if self.budget is not None:
            return self._over_budget()
        units = get_structure(self.structure)
        if units.sparsity is not None:
            if self.sparsity not in (None, units.sparsity):
                raise ValueError(
                    f"The structure {units.name!r} removes {units.sparsity:g} of the weights: "
                    f"leave `sparsity` out, got {self.sparsity!r}."
                )
            return units.sparsity
        if self.sparsity is None:
            also = ', or a `budget` such as {"macs": 0.5}' if units.spans_tensors else ""
            raise ValueError(f"Say how much to prune: `sparsity`, in [0, 1){also}.")
        check_sparsity(self.sparsity)
        return self.sparsity

    def _over_budget(self) -> float:
        assert self.budget is not None
        measure, kept = self.measure, next(iter(self.budget.values()))
        if self.sparsity is not None:
            raise ValueError("`sparsity` and `budget` both say how much to prune: give one.")
        if not isinstance(kept, (int, float)) or not 0 < kept <= 1:
            raise ValueError(
                f"`budget` must keep a fraction in (0, 1] of the {measure}, got {kept!r}."
            )
        return 1 - kept

    @property
    def chosen(self) -> dict[str, Any]:
        """The options besides sparsity and structure, which a ticket remembers."""
        return {
            "include": self.include,
            "exclude": self.exclude,
            "allow_empty": self.allow_empty,
            **self._of_groups,
        }

    def target(
        self,
        model: nn.Module,
        example_input: Inputs | None,
        run: Callable[[], object] | None = None,
    ) -> Found:
        """Return the target on `model`, and what had to be left out.

        Args:
            model: The model to prune.
            example_input: What the model takes; groups are found by running it on this.
            run: Runs `model`, to find prunable weights outside of known layers.

        Raises:
            ValueError: The target cannot be reached on `model`.
        """
        refuse_meta(model)
        units = get_structure(self.structure, self.scope)
        found = self._found_by_use(model, units, run)
        if units.spans_tensors:
            structure, left_out = self._groups(model, units, example_input)
        else:
            structure, left_out = units, self._undivided(model, units, found)
        target = Target(
            self.removed, structure, self.include, self.exclude, self.allow_empty, found
        )
        try:
            target.check(model)
        except ValueError as error:
            raise ValueError(f"{error}{_left_out(left_out)}") from error
        if self.include is None and self.exclude is None:
            tell_if_little(target, model)
        return Found(target, left_out)

    def _found_by_use(
        self, model: nn.Module, units: Structure, run: Callable[[], object] | None
    ) -> dict[str, tuple[int, ...]]:
        unknown = unexplained(model, units) if units.has_single_weights else []
        if run is None or not unknown:
            return {}
        try:
            with evaluation_mode(model):
                used = product_weights(model, run)
        except Exception:  # training will raise it again and say what is wrong
            return {}
        return {name: used[name] for name in unknown if name in used}

    def _groups(
        self, model: nn.Module, units: Structure, example_input: Inputs | None
    ) -> tuple[Structure, dict[str, str]]:
        from biprune.structured.find import group_structure

        if example_input is None:
            raise ValueError(
                "To find coupled filters, the model must be run: pass `example_input`, the tensor "
                "or the tuple of tensors that the model takes, with two samples or more."
            )
        return group_structure(
            model,
            example_input,
            scope=units.scope,
            measure=self.measure,
            round_to=self.round_to,
            include=self.include,
            exclude=self.exclude,
            attention=self.attention,
            streams=self.streams,
        )

    def _undivided(
        self, model: nn.Module, structure: Structure, found: Mapping[str, tuple[int, ...]]
    ) -> dict[str, str]:
        """The weights that stay dense because n:m does not divide them, with the reason."""
        if structure.block is None:
            return {}
        chosen = {"include": self.include, "exclude": self.exclude}
        weights = prunable(model, get_structure("weight"), found=found, **chosen)
        return {
            name: reason
            for name, weight in weights.items()
            if (reason := not_in_blocks(model, weight, structure.block, found.get(name)))
        }


def tell_if_little(target: Target, model: nn.Module) -> None:
    """Log a warning if less than half of the model's weights are prunable."""
    offered = sum(weight.numel() for weight in target.weights(model).values())
    total = num_weights(model)
    if offered < total / 2:
        logger.warning(
            "Only %s of the model's %s weights are prunable by %s, and the sparsity of %g counts "
            "only these. Name others with `include`.",
            f"{offered:,}",
            f"{total:,}",
            target.structure.name,
            target.sparsity,
        )


def _left_out(left_out: Mapping[str, str]) -> str:
    """Return a sentence on what was left out and why, or nothing."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        by_reason.setdefault(reason, []).append(name)
    parts = [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''} ({reason})"
        for reason, names in by_reason.items()
    ]
    return f" Left out: {'; '.join(parts)}." if parts else ""


class Found(NamedTuple):
    """A target, and the weights that were left out of it, with the reasons."""

    target: Target
    left_out: dict[str, str]


def trial_run(model: nn.Module, setup: Setup) -> Callable[[], Tensor]:
    """Return a function that computes the first batch's loss, with the caller's RNG untouched."""

    def run() -> Tensor:
        with forked_rng(setup.batches):
            batch = next(iter(setup.batches))
            return setup.loss(model, to_device(batch, device_of(model)))

    return run


def example_of(data: Dataset | Iterable[Batch], model: nn.Module) -> Tensor | None:
    """Return two of the model's inputs from `data`, on its device; None if they are not a tensor.

    The input is the batch itself, or the first element of a tuple or list.
    """
    if isinstance(data, Dataset):
        side = data.image_size
        inputs: object = torch.zeros(2, data.in_channels, side, side)
    else:
        with forked_rng(data):
            batch = next(iter(data), None)
        inputs = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    if not isinstance(inputs, Tensor) or inputs.ndim == 0:
        return None
    return inputs[:2].to(device_of(model))
