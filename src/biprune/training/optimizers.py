"""The optimizers of our loop and their learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.sgd import sgd
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from biprune.core.layout import in_memory_order, is_dense, same_layout
from biprune.core.parameters import parameter_names
from biprune.training.batches import device_of
from biprune.training.checkpoint import load_tensors_, only_tensors
from biprune.training.recipes import CLIP_ADAMW, Recipe
from biprune.training.setup import Setup


class SGD(torch.optim.SGD):
    """torch's SGD, correct and fast in every memory layout.

    torch's fused kernel is wrong where parameter, gradient and momentum differ in layout, and twice
    as slow on channels_last tensors as on the same memory in one dimension. So it gets the memory
    in one dimension. Momentum keeps the shape of its parameter, so saved states are the usual ones.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step by the current gradients, or by those that `closure` computes."""
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
        # Decay and momentum move every row, so a sparse gradient saves nothing here.
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
        """Return the momentum of `parameter` in its layout; zero before the first step."""
        state = self.state[parameter]
        buffer = state.get("momentum_buffer")
        if buffer is None or not same_layout(buffer, parameter):
            state["momentum_buffer"] = torch.zeros_like(parameter)
            if buffer is not None:  # loaded from a model in another layout
                state["momentum_buffer"].copy_(buffer)
        return state["momentum_buffer"]


def _can_be_fused(parameter: Tensor) -> bool:
    """Whether the fused kernel is correct for a parameter.

    On CPUs, that of torch 2.13 silently skips most entries of half-precision tensors
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
    """Return SGD, fused where the device allows; without momentum, `nesterov` has no effect."""
    return SGD(
        parameters,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        nesterov=nesterov and momentum > 0,
        fused=device.type in ("cpu", "cuda"),
    )


def make_optimizer(groups: list[dict[str, Any]], recipe: Recipe, device: torch.device) -> Optimizer:
    """Return the optimizer of a recipe."""
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=recipe.lr, weight_decay=recipe.weight_decay)
    options = {name: getattr(recipe, name) for name in ("lr", "momentum", "weight_decay")}
    return make_sgd(groups, device, nesterov=recipe.nesterov, **options)


class Descent:
    """The optimizers of a run, with learning rate, clipping and weight averaging.

    The setup takes precedence over the recipe. The weights in `apart` decay by `decay`, unless that
    is None.
    """

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        setup: Setup,
        apart: Iterable[nn.Parameter] = (),
        decay: float | None = None,
    ) -> None:
        self._model = model
        trainable = [p for p in parameter_names(model).values() if p.requires_grad]
        if setup.optimizer is not None:
            made = setup.optimizer(_groups(trainable, apart, decay, split=True))
            self.optimizers = list(made) if isinstance(made, Sequence) else [made]
            for each in self.optimizers:
                if not isinstance(each, Optimizer):
                    raise TypeError(
                        "`optimizer` must return a torch.optim.Optimizer or a list of them, got "
                        f"{type(each).__name__}."
                    )
        else:
            split = recipe.optimizer == "adamw"
            groups = _groups(trainable, apart, decay, split=split)
            if split:
                groups[-1]["weight_decay"] = 0.0
            self.optimizers = [make_optimizer(groups, recipe, device_of(model))]
        self._factor = setup.lr_schedule or recipe.lr_schedule().factor
        self._clip = setup.clip_grad
        if self._clip is None and setup.optimizer is None and recipe.optimizer == "adamw":
            self._clip = CLIP_ADAMW
        self._average = None
        if setup.ema is not None:
            average = get_ema_multi_avg_fn(setup.ema)
            self._average = AveragedModel(model, multi_avg_fn=average, use_buffers=True)

    @property
    def rate(self) -> float:
        """The learning rate of the first group."""
        return self.optimizers[0].param_groups[0]["lr"]

    def set_rates(self, done: float) -> None:
        """Set every learning rate to its value after a fraction `done` of the run."""
        factor = self._factor(done)
        for optimizer in self.optimizers:
            set_rates(optimizer, factor)

    def step(self) -> None:
        """Clip the gradients, step every optimizer and update the averages."""
        if self._clip is not None and math.isfinite(self._clip):
            nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        for optimizer in self.optimizers:
            optimizer.step()
        if self._average is not None:
            self._average.update_parameters(self._model)

    @torch.no_grad()
    def finish(self) -> None:
        """Copy the averages into the model, if there are any."""
        if self._average is not None:
            state = self._average.module.state_dict()
            for name, tensor in self._model.state_dict().items():
                if isinstance(tensor, Tensor) and tensor.is_floating_point():  # not counters
                    tensor.copy_(state[name])

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the optimizers and the averages."""
        own: dict[str, Any] = {"optimizers": [each.state_dict() for each in self.optimizers]}
        if self._average is not None:
            own["average"] = only_tensors(self._average.state_dict())
        return own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`."""
        for optimizer, own in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)
        if self._average is not None:
            load_tensors_(self._average, state["average"])


def _groups(
    parameters: Sequence[nn.Parameter],
    apart: Iterable[nn.Parameter],
    decay: float | None,
    *,
    split: bool,
) -> list[dict[str, Any]]:
    """Return parameter groups: all in one, or `split` into weights, and norms with biases."""
    own = {id(parameter) for parameter in apart} if decay is not None else set()
    rest = [p for p in parameters if id(p) not in own]
    parts = [[p for p in rest if p.ndim > 1], [p for p in rest if p.ndim <= 1]] if split else [rest]
    groups: list[dict[str, Any]] = [{"params": part} for part in parts]
    if own:
        held = [p for p in parameters if id(p) in own]
        groups.insert(0, {"params": held, "weight_decay": decay})
    return groups


def set_rates(optimizer: Optimizer, factor: float) -> None:
    """Set every learning rate of `optimizer` to `factor` times its initial one."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group.setdefault("initial_lr", group["lr"])
