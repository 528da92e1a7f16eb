"""Slow, obvious references that share no code with the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call


def stable_top_k(scores: Sequence[float], k: int) -> list[bool]:
    """Keep the k largest, equal scores in order of index, by sorting everything."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    kept = set(order[:k])
    return [i in kept for i in range(len(scores))]


def top_k_with_floor(layers: Sequence[Sequence[float]], k: int) -> list[list[bool]]:
    """Each layer's best unit first, then the best of all others until k are kept."""
    kept = [[False] * len(layer) for layer in layers]
    for i, layer in enumerate(layers):
        kept[i][layer.index(max(layer))] = True
    units = [(-s, i, j) for i, layer in enumerate(layers) for j, s in enumerate(layer)]
    for _, i, j in sorted(units):
        if sum(map(sum, kept)) == k:
            break
        kept[i][j] = True
    return kept


def central_difference(function: Callable[[Tensor], Tensor], at: Tensor, step: float) -> Tensor:
    """Gradient of a scalar function, one entry at a time."""
    gradient = torch.empty_like(at)
    for i in range(at.numel()):
        offset = torch.zeros_like(at)
        offset.view(-1)[i] = step
        gradient.view(-1)[i] = (function(at + offset) - function(at - offset)) / (2 * step)
    return gradient


class ReferenceBiP:
    """Algorithm A1 as printed: m and theta are autograd variables, SGD is written out.

    Unstructured or by filter or channel; the loss is `loss(logits, labels)` in train mode. Dense
    parameters (norms, biases) move at the lower level. Without `score_dead_rows`, which the paper
    has, an output all of whose weights are pruned gives their scores no gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        prunable: Sequence[str],
        sparsity: float,
        dim: int | None,
        lr: float,
        score_lr: float,
        gamma: float,
        momentum: float,
        weight_decay: float,
        implicit_gradient: bool = True,
        score_momentum: float | None = None,
        score_dead_rows: bool = True,
    ) -> None:
        self.model = model
        self.implicit_gradient, self.score_dead_rows = implicit_gradient, score_dead_rows
        state = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.theta = {name: state[name] for name in prunable}
        self.dense = {name: value for name, value in state.items() if name not in self.theta}
        self.scores = {name: theta.abs() for name, theta in self.theta.items()}
        self.momenta: dict[tuple[str, str], Tensor] = {}
        self.sparsity, self.dim = sparsity, dim
        self.lr, self.score_lr, self.gamma = lr, score_lr, gamma
        self.momentum, self.weight_decay = momentum, weight_decay
        self.score_momentum = momentum if score_momentum is None else score_momentum
        self.threshold()

    def loss(self, m: dict[str, Tensor], theta: dict[str, Tensor], batch: tuple) -> Tensor:
        z = {name: m[name] * theta[name] for name in theta}
        logits = functional_call(self.model, {**self.dense, **z}, (batch[0],))
        return nn.functional.cross_entropy(logits, batch[1])

    def lower(self, batch: tuple) -> None:
        theta = {n: t.clone().requires_grad_() for n, t in self.theta.items()}
        self.dense = {n: t.clone().requires_grad_() for n, t in self.dense.items()}
        self.loss(self.mask, theta, batch).backward()
        for n, t in theta.items():
            self.theta[n] = self.sgd("theta", n, t.detach(), t.grad, self.lr, self.weight_decay)
        for n, t in self.dense.items():
            moved = self.sgd("dense", n, t.detach(), t.grad, self.lr, self.weight_decay)
            self.dense[n] = moved

    def upper(self, batch: tuple) -> None:
        self.move_scores(batch)
        self.threshold()

    def move_scores(self, batch: tuple) -> None:
        m = {n: t.clone().requires_grad_() for n, t in self.mask.items()}
        theta = {n: t.clone().requires_grad_() for n, t in self.theta.items()}
        z = {n: (m[n] * theta[n]).detach().requires_grad_() for n in theta}
        ones = {n: torch.ones_like(t) for n, t in z.items()}
        self.loss(m, theta, batch).backward()
        self.loss(ones, z, batch).backward()
        for n in theta:
            gradient = m[n].grad
            if self.implicit_gradient:
                gradient = gradient - z[n].grad * theta[n].grad / self.gamma
            if not self.score_dead_rows:
                alive = [float(row.any()) for row in self.mask[n]]
                gradient = torch.stack([a * g for a, g in zip(alive, gradient, strict=True)])
            self.scores[n] = self.sgd("m", n, self.scores[n], gradient, self.score_lr, 0.0)

    def sgd(self, kind: str, n: str, x: Tensor, g: Tensor | None, lr: float, wd: float) -> Tensor:
        assert g is not None
        g = g + wd * x
        buffer = self.momenta.get((kind, n), torch.zeros_like(x))
        momentum = self.score_momentum if kind == "m" else self.momentum
        buffer = self.momenta[kind, n] = momentum * buffer + g
        return x - lr * buffer

    def threshold(self) -> None:
        self.mask = self.best(self.scores)

    def best(self, ranked: dict[str, Tensor]) -> dict[str, Tensor]:
        """All weights compete; filters and channels within their layer, whose share is exact."""
        mask = {}
        if self.dim is None:
            flat = [float(s) for score in ranked.values() for s in score.flatten()]
            kept = iter(stable_top_k(flat, round((1 - self.sparsity) * len(flat))))
            for n, s in ranked.items():
                bits = [next(kept) for _ in range(s.numel())]
                mask[n] = torch.tensor(bits, dtype=s.dtype).view(s.shape)
            return mask
        for n, s in ranked.items():
            units = [float((u.clamp(min=0) ** 2).sum() ** 0.5) for u in s.unbind(self.dim)]
            kept = stable_top_k(units, round((1 - self.sparsity) * len(units)))
            shape = [1] * s.ndim
            shape[self.dim] = -1
            mask[n] = torch.tensor(kept, dtype=s.dtype).view(shape).expand(s.shape).clone()
        return mask
