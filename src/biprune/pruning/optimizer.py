"""The two steps of `bip` and `bip-plus` for people who step them by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from torch import nn

from biprune.core.parameters import Patterns, unwrap
from biprune.core.selection import check_kept
from biprune.core.structure import Scope
from biprune.methods import get_method
from biprune.methods.bip import BiPLevels
from biprune.methods.bip_plus import BiPPlus, BiPPlusLevels
from biprune.pruning.request import Request
from biprune.pruning.ticket import Ticket, check_masks, input_fields
from biprune.structured.calls import Inputs, as_inputs
from biprune.training.loop import Cost


class BiPOptimizer(BiPLevels):
    """The optimizer of `prune(..., "bip")`, to be stepped by hand.

    `lower` and `upper` are `torch.optim` optimizers, so schedulers attach to them.

    Args:
        model: Changed in place.
        sparsity, structure, scope, budget, round_to, include, exclude, allow_empty: As in `prune`.
        example_input: With which the groups of structure "group" are found.
        seed: Of whatever is drawn; the ticket has it.
        **settings: Those of the method: lr, score_lr, gamma, momentum, and so on. What belongs to a
            whole run, such as `epochs`, has no effect here.

    Example:
        >>> import torch, biprune
        >>> model = torch.nn.Linear(8, 2)
        >>> opt = biprune.BiPOptimizer(model, sparsity=0.5)
        >>> for step in (opt.lower_step, opt.upper_step):
        ...     opt.zero_grad()
        ...     model(torch.ones(4, 8)).square().sum().backward()
        ...     _ = step()
        >>> opt.masks.kept, int(torch.count_nonzero(model.weight))
        (8, 8)
    """

    name: ClassVar[str] = "bip"

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
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self._request = Request(
            sparsity, structure, scope, budget, round_to, include, exclude, allow_empty
        )
        run = None if example_input is None else lambda: model(*as_inputs(example_input))
        target, self.left_out = self._request.target(model, example_input, run)
        self._inputs = input_fields(example_input)
        # Of the subclass's own kind, which the registry knows by name alone.
        method = cast(BiPPlus, get_method(self.name, settings))
        super().__init__(model, target, method, seed=seed)

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
            method=self.name,
            settings=self.method.settings,
            sparsity=self.sparsity,
            seed=self.seed,
            left_out=self.left_out,
            chosen=self._request.chosen,
            **self._inputs,
        )


class BiPPlusOptimizer(BiPOptimizer, BiPPlusLevels):
    """The same for `prune(..., "bip-plus")`, whose `step` moves both levels by one gradient.

    `sparsity` is what the next mask is selected by: raise it as the run goes on.
    """

    name: ClassVar[str] = "bip-plus"
