"""BiP for people who own their training loop."""

from __future__ import annotations

from biprune.loop import Cost
from biprune.methods.bilevel import BiLevelOptimizer
from biprune.structure import unwrap
from biprune.ticket import Ticket, check_masks


class BiPOptimizer(BiLevelOptimizer):
    """The optimizer that `prune(..., "bip")` runs, to be stepped by hand.

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
    """

    def ticket(self) -> Ticket:
        """End the run: the module as it is, with its masks. Accuracy and cost are the caller's."""
        check_masks(self.model, self.masks)
        return Ticket(
            model=unwrap(self.model).eval(),
            masks=self.masks,
            accuracy=None,
            cost=Cost(),
            history=[],
            method="bip",
            settings=self.settings,
            sparsity=self.sparsity,
            seed=self.seed,
        )
