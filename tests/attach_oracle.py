"""`attach` written out: a plain optimizer, and after each of its steps the rule in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from oracles import stable_top_k, top_k_with_floor

RAMP, KAPPA = 0.6, 3.0


class Reference:
    """Trains `model` itself by `optimizers` that know nothing of masks.

    For conv nets whose rows are dimension 0. Everything is a list over the prunable tensors; what
    is learned is float64, and masks come from full sorts of Python floats.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        method: str,
        structure: str,
        sparsity: float,
        steps: int,
    ) -> None:
        self.model, self.optimizers = model, optimizers
        self.method, self.structure, self.steps = method, structure, steps
        self.target, self.done, self.mean = sparsity, 0, 0.0
        named = dict(model.named_parameters())
        names = {"filter": ["conv1.weight", "conv2.weight"], "channel": ["conv2.weight"]}
        names |= {"2:4": ["conv2.weight", "head.weight"]}  # conv1 has one input
        self.names = names.get(structure, ["conv1.weight", "conv2.weight", "head.weight"])
        self.weights = [named[name] for name in self.names]
        self.theta = [w.detach().clone() for w in self.weights]
        self.scores = [torch.zeros_like(t, dtype=torch.float64) for t in self.theta]
        self.momenta = [torch.zeros_like(s) for s in self.scores]
        self.peak = [0.0 for _ in self.weights]
        self.masks = [torch.ones_like(t, dtype=torch.bool) for t in self.theta]
        if method == "bip":
            self.scores = [t.double().abs() for t in self.theta]
            self.redraw()
        self.write()

    def step(self) -> None:
        """One step, with the gradients of a backward in the model."""
        number = self.done + 1
        upper = self.method == "bip" and number % 2 == 0
        gradients = [w.grad.detach().clone() for w in self.weights]
        self.step_optimizers("nothing" if upper and number <= self.steps else self.moves)
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        if number > self.steps:
            return self.write()
        if upper or self.method in ("bip-plus", "movement"):
            self.learn([gradient.double() for gradient in gradients])
        self.done = number
        if upper or (self.method != "bip" and self.draws()):
            self.redraw()
        return self.write()

    @property
    def moves(self) -> str:
        return "theta" if self.method in ("bip", "gmp") else "z"

    @torch.no_grad()
    def step_optimizers(self, what: str) -> None:
        """Let them step theta by m * g, or z by g but for rows that keep nothing, or nothing."""
        for i in range(len(self.weights)):
            self.rate(i)
        if what == "nothing":
            return
        for weight, theta, mask in zip(self.weights, self.theta, self.masks, strict=True):
            if what == "theta":
                weight.copy_(theta)
                weight.grad[~mask] = 0.0
            for row in range(len(mask)):
                if not mask[row].any():
                    weight.grad[row] = 0.0
        for optimizer in self.optimizers:
            optimizer.step()
        for theta, weight, mask in zip(self.theta, self.weights, self.masks, strict=True):
            kept = mask if what == "z" else torch.ones_like(mask)
            theta[kept] = weight.detach()[kept]

    def draws(self) -> bool:
        end = max(1, round(RAMP * self.steps))
        is_fixed = self.method == "gmp" or self.structure in ("filter", "channel")
        if self.done >= end and is_fixed:
            return self.done == end
        return self.method != "gmp" or self.done % 10 == 0 or self.done == end

    def learn(self, gradients: list[Tensor]) -> None:
        products = []
        for theta, gradient, mask in zip(self.theta, gradients, self.masks, strict=True):
            product = theta.double() * gradient
            if self.method == "bip":
                product -= torch.where(mask, gradient, 0.0) ** 2
            for row in range(len(mask)):
                if not mask[row].any():
                    product[row] = 0.0
            if self.method == "bip-plus" and self.structure in ("filter", "channel"):
                product[~mask] = 0.0
            products.append(product)
        size = sum(float(p.abs().sum()) for p in products) / sum(p.numel() for p in products)
        seen = self.done + 1
        self.mean += (size - self.mean) * (1 / seen if seen < 100 else 0.01)
        for i, product in enumerate(products):
            rate = self.rate(i)
            if self.method == "bip-plus":
                self.scores[i] -= KAPPA * rate * product / (self.steps * self.mean)
            elif self.method == "movement":
                self.scores[i] -= rate * product
            else:
                self.momenta[i] = 0.9 * self.momenta[i] + product
                self.scores[i] -= 0.1 * rate * self.momenta[i]

    def group(self, i: int) -> dict:
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return next(g for g in groups if any(p is self.weights[i] for p in g["params"]))

    def rate(self, i: int) -> float:
        group = self.group(i)
        self.peak[i] = max(self.peak[i], group["lr"], group.get("initial_lr", 0.0))
        return group["lr"] / self.peak[i]

    def sparsity(self) -> float:
        end = max(1, round(RAMP * self.steps))
        if self.method == "bip" or self.done >= end:
            return self.target
        return self.target * (1 - (1 - self.done / self.steps / RAMP) ** 3)

    def redraw(self) -> None:
        ranked = self.ranked()
        kept = 1 - self.sparsity()
        if ":" in self.structure:
            self.masks = [self.blocks(each, kept) for each in ranked]
        elif self.structure == "weight":
            flat = [each.flatten().tolist() for each in ranked]
            found = top_k_with_floor(flat, round(kept * sum(map(len, flat))))
            pairs = zip(found, ranked, strict=True)
            self.masks = [torch.tensor(mask).view_as(each) for mask, each in pairs]
        else:
            self.masks = self.units(ranked, kept, 0 if self.structure == "filter" else 1)

    def ranked(self) -> list[Tensor]:
        if self.method in ("bip", "movement"):
            return self.scores
        magnitudes = [t.double().abs() for t in self.theta]
        if self.method == "gmp":
            return magnitudes
        count = sum(m.numel() for m in magnitudes)
        rms = math.sqrt(sum(float((m**2).sum()) for m in magnitudes) / count)
        return [m / rms + s for m, s in zip(magnitudes, self.scores, strict=True)]

    def blocks(self, ranked: Tensor, kept: float) -> Tensor:
        size = int(self.structure.partition(":")[2])
        rows = ranked.movedim(1, -1).reshape(-1, size).tolist()
        masks = torch.tensor([stable_top_k(row, round(kept * size)) for row in rows])
        moved = [ranked.shape[0], *ranked.shape[2:], ranked.shape[1]]
        return masks.reshape(moved).movedim(-1, 1)

    def units(self, ranked: list[Tensor], kept: float, dim: int) -> list[Tensor]:
        """Each layer's quota, rounded down; what is left over goes to the largest remainders."""
        pooled = [r.clamp(min=0).movedim(dim, 0).flatten(1).norm(dim=1).tolist() for r in ranked]
        quotas = [kept * len(layer) for layer in pooled]
        counts = [max(1, math.floor(quota + 1e-9)) for quota in quotas]
        order = sorted(range(len(quotas)), key=lambda i: (counts[i] - quotas[i], i))
        for i in order[: round(kept * sum(map(len, pooled))) - sum(counts)]:
            counts[i] += 1
        masks = []
        for layer, count, each in zip(pooled, counts, ranked, strict=True):
            view = [-1 if d == dim else 1 for d in range(each.ndim)]
            masks.append(torch.tensor(stable_top_k(layer, count)).view(view).expand(each.shape))
        return masks

    @torch.no_grad()
    def write(self) -> None:
        for weight, theta, mask in zip(self.weights, self.theta, self.masks, strict=True):
            weight.copy_(torch.where(mask, theta, 0.0))
