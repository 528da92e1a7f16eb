"""SGD, plain and under a mask that may change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from biprune.core.layout import in_memory_order, is_dense, same_layout
from biprune.core.masked import Masked, where_kept
from biprune.core.masks import Masks
from biprune.core.parameters import parameter_names
from biprune.training.batches import device_of


class SGD(torch.optim.SGD):
    """torch's SGD on tensors as they lie in memory, whatever their layout.

    The fused kernel takes it that parameter, gradient and momentum share one layout: it is wrong
    where they do not, and on channels_last tensors half as fast as on the same memory in one
    dimension. Momentum keeps the shape of its parameter, so that saved states are the usual ones.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """One step by the gradients at hand, or by those that `closure` leaves."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _step_group(self, group: Mapping[str, Any]) -> None:
        moved = [p for p in group["params"] if p.grad is not None]
        if not moved:
            return
        # Decay and momentum move every row, so that a sparse gradient saves nothing here.
        params, grads = moved, [p.grad.to_dense() for p in moved]
        buffers: list[Tensor | None] = []
        if group["momentum"]:
            buffers += [self.momentum_of(p) for p in moved]
        fused = bool(group["fused"]) and all(_can_be_fused(p) for p in moved)
        if fused:
            params = [in_memory_order(p, p) for p in moved]
            grads = [in_memory_order(g, p) for g, p in zip(grads, moved, strict=True)]
            buffers = [b if b is None else b.as_strided((b.numel(),), (1,)) for b in buffers]
        names = ("weight_decay", "momentum", "lr", "dampening", "nesterov", "maximize")
        options = {name: group[name] for name in names}
        sgd(params, grads, buffers, has_sparse_grad=False, foreach=False, fused=fused, **options)

    def momentum_of(self, parameter: Tensor) -> Tensor:
        """The momentum of `parameter` in its layout, zero before the first step."""
        state = self.state[parameter]
        buffer = state.get("momentum_buffer")
        if buffer is None or not same_layout(buffer, parameter):
            state["momentum_buffer"] = torch.zeros_like(parameter)
            if buffer is not None:  # from the state of a model in another layout
                state["momentum_buffer"].copy_(buffer)
        return state["momentum_buffer"]


def _can_be_fused(parameter: Tensor) -> bool:
    """Whether the fused kernel is right for a parameter.

    On CPUs torch 2.13 leaves most entries of half-precision tensors where they are, without a word
    (pytorch#191763).
    """
    is_half_on_host = parameter.device.type == "cpu" and parameter.element_size() < 4
    return is_dense(parameter) and not parameter.is_complex() and not is_half_on_host


def make_sgd(
    parameters: Iterable[Tensor] | list[dict[str, Any]],
    device: torch.device,
    *,
    lr: float,
    momentum: float,
    weight_decay: float = 0.0,
    nesterov: bool = False,
) -> SGD:
    """SGD in one fused kernel where the device has one; without momentum `nesterov` is nothing."""
    return SGD(
        parameters,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        nesterov=nesterov and momentum > 0,
        fused=device.type in ("cpu", "cuda"),
    )


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Give every parameter group of `optimizer` this learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def unscale_(parameters: Iterable[nn.Parameter], loss_scale: float | Tensor) -> bool:
    """Divide gradients by the loss scale in place; False if anything overflowed under it."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not gradients:
        raise ValueError("There are no gradients to step by: call loss.backward() first.")
    if isinstance(loss_scale, float) and loss_scale == 1.0:
        return True
    for gradient in gradients:
        gradient.div_(loss_scale)
    values = [g.coalesce().values() if g.is_sparse else g for g in gradients]
    return bool(torch.stack([value.isfinite().all() for value in values]).all())


class MaskedSGD:
    """SGD on theta of the prunable weights and on everything trainable that is not prunable.

    The gradient of theta is m * g. Pruned entries of theta have none, decay, and come back with the
    value they have when the mask does; with `freeze_pruned` that is the value they had when they
    were pruned: without decay, and without the momentum that was left. `theta_decay` None is
    `weight_decay`.
    """

    def __init__(
        self,
        model: nn.Module,
        weights: Mapping[str, nn.Parameter],
        masks: Masks,
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        theta_decay: float | None = None,
        nesterov: bool = False,
        freeze_pruned: bool = False,
    ) -> None:
        self.masked = Masked(weights, masks)
        named = parameter_names(model).items()
        dense = [p for name, p in named if name not in self.theta and p.requires_grad]
        decay = weight_decay if theta_decay is None else theta_decay
        self._frozen = freeze_pruned
        self._decay = decay if freeze_pruned else 0.0  # of kept weights alone; SGD decays all
        groups: list[dict[str, Any]] = [
            {"params": list(self.theta.values()), "weight_decay": decay - self._decay}
        ]
        if dense:
            groups.append({"params": dense, "weight_decay": weight_decay})
        device = device_of(model)
        self.optimizer = make_sgd(groups, device, lr=lr, momentum=momentum, nesterov=nesterov)

    @property
    def theta(self) -> dict[str, Tensor]:
        """The weights beneath the mask, by name."""
        return self.masked.theta

    @torch.no_grad()
    def step(self) -> None:
        """theta <- theta - lr * (m * g + decay * theta), the dense rest likewise; then z.

        The decay is m * decay * theta with `freeze_pruned`.
        """
        with self.masked.masked_gradients() as (_, masked):
            self.apply(masked)

    def apply(self, masked_gradients: Mapping[str, Tensor]) -> None:
        """Move theta by m * g, and the dense rest by its own gradients; z is left as it is.

        Uses `masked_gradients` up.
        """
        for name, gradient in masked_gradients.items():
            self.theta[name].grad = gradient
            if self._frozen:
                self._freeze(name, gradient)
        self.optimizer.step()
        for theta in self.theta.values():
            theta.grad = None

    def _freeze(self, name: str, gradient: Tensor) -> None:
        theta, mask = self.theta[name], self.masked.masks[name]
        where_kept(mask, gradient.add_(theta, alpha=self._decay), out=gradient)
        if self.optimizer.param_groups[0]["momentum"]:
            momentum = self.optimizer.momentum_of(theta)
            where_kept(mask, momentum, out=momentum)

    def state_dict(self) -> dict[str, Any]:
        """theta, masks and the optimizer's state; the dense rest is the model's own."""
        return {
            "theta": self.theta,
            "masks": dict(self.masked.masks),
            "lower": self.optimizer.state_dict(),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`; the model's weights are written from theta and masks."""
        if state["theta"].keys() != self.theta.keys():
            raise ValueError(
                "The state is of other tensors than the model's prunable ones: "
                f"{sorted(state['theta'].keys() ^ self.theta.keys())} are in one of them only."
            )
        for name, theta in self.theta.items():
            theta.copy_(state["theta"][name])
        self.optimizer.load_state_dict(state["lower"])
        masks = self.masked.masks
        device = next(iter(masks.values())).device
        self.masked.set_masks(Masks(state["masks"], masks.structure).to(device))
