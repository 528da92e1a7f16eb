"""Rules whose scores learn from theta * g, the change of the loss as a weight is let in."""

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
    """One score per weight, or per unit of a group, where theta * g is summed over its gates.

    If an iteration has several steps, the last belongs to the upper level: it moves only the
    scores, with a batch of their own. Scores of dead rows do not move (see `Rows`). Nothing moves
    if a gradient is not finite, since an optimizer under a loss scale skips such a step.
    On a GPU, a step that moves scores reads one number back.
    """

    @property
    def is_upper(self) -> bool:
        """Whether the next step moves the scores."""
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
        """dl/dm for each score, in the memory of `work`."""
        for name, product in work.items():
            if (gradient := self._gradient(name)) is None:
                product.zero_()
            else:
                self.mask_gradient(name, gradient, stepped[name].scale, out=product)
        return groups.add_up_gates(work) if (groups := self._structure.coupled) else work

    def mask_gradient(self, name: str, gradient: Tensor, scale: float, out: Tensor) -> None:
        """Write dl/dm of one tensor to `out`; `gradient` still carries the loss `scale`."""
        torch.mul(self.theta[name].to(self._dtype), gradient, out=out)
        if scale != 1:
            out.div_(scale)

    def _rates(self, stepped: Mapping[str, Stepped]) -> dict[str, float]:
        """The learning rate over its peak per score; a group takes its first tensor's."""
        if coupled := self._structure.coupled:
            return {g.name: stepped[g.slices[0].tensor].rate for g in coupled.groups}
        return {name: each.rate for name, each in stepped.items()}
