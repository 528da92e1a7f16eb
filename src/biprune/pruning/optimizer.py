"""BiP for people who own their training loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from biprune.core.parameters import Patterns, unwrap
from biprune.core.selection import check_kept
from biprune.core.structure import Scope
from biprune.methods.bilevel import BiLevelOptimizer
from biprune.pruning.request import Request
from biprune.pruning.ticket import Ticket, check_masks, input_fields
from biprune.structured.inputs import Inputs, as_inputs
from biprune.training.loop import Cost


class BiPOptimizer(BiLevelOptimizer):
    """The optimizer of `prune(..., "bip")`, to be stepped by hand; its defaults are the paper's.

    >>> import torch, biprune
    >>> model = torch.nn.Linear(8, 2)
    >>> opt = biprune.BiPOptimizer(model, sparsity=0.5)
    >>> for step in (opt.lower_step, opt.upper_step):
    ...     opt.zero_grad()
    ...     model(torch.ones(4, 8)).square().sum().backward()
    ...     _ = step()
    >>> opt.masks.kept, int(torch.count_nonzero(model.weight))
    (8, 8)

    `opt.lower` and `opt.upper` are `torch.optim` optimizers, so schedulers attach to them.
    `settings` are the fields of `LevelSettings`: lr, score_lr, gamma, momentum, and so on. For
    structure "group" give `example_input`, with which the groups are found; `budget` and `round_to`
    are as in `prune`.
    """

    def __init__(
        self,
        model: nn.Module,
        sparsity: float | None = None,
        structure: str = "weight",
        *,
        scope: Scope | None = None,
        budget: Mapping[str, float] | None = None,
        round_to: int = 1,
        include: Patterns = None,
        exclude: Patterns = None,
        allow_empty: bool = False,
        example_input: Inputs | None = None,
        **settings: Any,
    ) -> None:
        self._request = Request(
            sparsity, structure, scope, budget, round_to, include, exclude, allow_empty
        )
        run = None if example_input is None else lambda: model(*as_inputs(example_input))
        target, self.left_out = self._request.target(model, example_input, run)
        self._inputs = input_fields(example_input)
        super().__init__(model, target, **settings)

    def ticket(self) -> Ticket:
        """End the run: the module as it is, with its masks. Accuracy and cost are the caller's."""
        check_masks(self.model, self.masks)
        try:
            check_kept(self.masks, self.sparsity, allow_empty=self._request.allow_empty)
        except RuntimeError as error:
            raise ValueError(
                f"`sparsity` is {self.sparsity:g} now, but the mask was not drawn by it: {error} "
                "Take a step that moves the mask first."
            ) from None
        return Ticket(
            model=unwrap(self.model).eval(),
            masks=self.masks,
            accuracy=None,
            cost=Cost(),
            history=[],
            method="bip",
            settings=asdict(self.settings),
            sparsity=self.sparsity,
            seed=self.seed,
            left_out=self.left_out,
            chosen=self._request.chosen,
            **self._inputs,
        )
