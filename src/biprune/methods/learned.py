"""Rules with scores that learn from theta * g, the change of the loss as a weight is let in."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.linalg import vector_norm

from biprune.core.layout import side_by_side
from biprune.methods.attached import Rule, Values
from biprune.training.step_hooks import Stepped


class LearnedRule(Rule):
    """Scores of weights, or of a group's units by the sum of theta * g over their gates.

    Where an iteration has several steps the last is the upper level's: it moves the scores alone,
    by a batch of its own. Rows without a kept weight stand still (`Rows`), and so does everything
    in a step whose gradients are not finite, which optimizers under a loss scale skip.
    On other devices than the CPU a step that moves scores reads one number back.
    """

    @property
    def is_upper(self) -> bool:
        """Whether the scores move in the next step."""
        steps = self.method.steps_per_iteration
        return self.step % steps == steps - 1

    def _make_scores(self) -> None:
        like = self._structure.scored(self.theta)
        zeros = {name: torch.zeros_like(t, dtype=self._dtype) for name, t in like.items()}
        self.scores = side_by_side(zeros)

    def _tensors(self) -> dict[str, Values]:
        return {**super()._tensors(), "scores": self.scores}

    def _ranked(self, work: Values) -> Values:
        del work
        return self.scores

    def _move_scores(self, stepped: Mapping[str, Stepped], work: Values) -> bool:
        if not self.is_upper:
            return True
        if self._had_gradients and all(each.grad is None for each in self.weights.values()):
            raise ValueError(
                "The optimizer clears the gradients within its step, and the mask learns by them: "
                "clear them after it, by zero_grad(), or use the method 'gmp'."
            )
        gradients = self._gradients(stepped, work)
        sizes = [vector_norm(gradient, 1) for gradient in gradients.values()]
        size = float(torch.stack(sizes).sum()) if sizes else 0.0
        if not math.isfinite(size):
            return False
        self.m_step(gradients, self._rates(stepped), size)
        return True

    @abstractmethod
    def m_step(self, gradients: Values, rates: Mapping[str, float], size: float) -> None:
        """Move the scores by dl/dm, whose 1-norm is `size`."""

    def _gradients(self, stepped: Mapping[str, Stepped], work: Values) -> Values:
        """dl/dm of each score, in the memory of `work`."""
        for name, product in work.items():
            if (gradient := self._gradient(name)) is None:
                product.zero_()
            else:
                self.mask_gradient(name, gradient, stepped[name].scale, out=product)
        return groups.add_up_gates(work) if (groups := self._structure.coupled) else work

    def mask_gradient(self, name: str, gradient: Tensor, scale: float, out: Tensor) -> None:
        """dl/dm of one tensor, of a gradient that is still `scale` times as large."""
        torch.mul(self.theta[name].to(self._dtype), gradient, out=out)
        if scale != 1:
            out.div_(scale)

    def _rates(self, stepped: Mapping[str, Stepped]) -> dict[str, float]:
        """The rate over its peak by the name of a score; for a group that of its first tensor."""
        if coupled := self._structure.coupled:
            return {g.name: stepped[g.slices[0].tensor].rate for g in coupled.groups}
        return {name: each.rate for name, each in stepped.items()}
