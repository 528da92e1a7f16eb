"""Hooks around the steps of a user's optimizers, however these are wrapped.

`torch.optim.Optimizer` calls hooks before and after `step`. Some cases need care:

- A subclass that calls `super().step()`, or an optimizer inside another, calls the hooks several
  times per step. The first post-hook after a pre-hook counts the step; later ones take up what else
  happened to the weights. A step that raises does not count.
- Wrappers (Accelerate's, Lightning's) have no hooks of their own; the optimizer inside has.
- `GradScaler` hands a fused optimizer the loss scale and whether gradients overflowed, and calls it
  in either case. torch's fused optimizers divide the gradients by the scale in place.
- An optimizer replaces its groups when it loads a state, so we keep no reference to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.linalg import vector_norm
from torch.optim import Optimizer

Optimizers = Optimizer | Sequence[Optimizer]
_INSIDE = ("optimizer", "_optimizer", "base_optimizer")
_TABLE = "_optimizer_step_post_hooks"


class Stepped(NamedTuple):
    """How an optimizer stepped a weight.

    Attributes:
        rate: The learning rate over its peak so far; negative if the optimizer maximizes.
        scale: The loss scale that the gradient still has.
    """

    rate: float
    scale: float


class Watcher(Protocol):
    """What the hooks call: a rule or a holder."""

    def prepare(self, names: Iterable[str]) -> bool:
        """Prepare for the optimizer's step on `names`; their gradients are complete.

        Return False if the step must move nothing. It may be called twice per step, with `restore`
        in between.
        """
        ...

    def restore(self) -> None:
        """Make the weights hold z again: a closure runs the model, or the step has failed."""
        ...

    def after_step(self, names: Iterable[str], stepped: Mapping[str, Stepped] | None) -> None:
        """Take up the moved weights of `names`; `stepped`, of all weights, ends the step."""
        ...


class StepHooks:
    """The hooks on the optimizers of `weights`, active from `register` until `remove`.

    With several optimizers, a whole step is one step of each. It ends when the last one in the
    given order has stepped. `peaks` are the highest learning rates so far.
    """

    def __init__(self, optimizers: Optimizers, weights: Mapping[str, nn.Parameter]) -> None:
        given = list(optimizers) if isinstance(optimizers, (list, tuple)) else [optimizers]
        nests = [_nest(each) for each in given]
        if len({id(nest[-1]) for nest in nests}) < len(nests):
            raise ValueError("An optimizer is given twice: list each of them once.")
        self._weights = dict(weights)
        self._names = {id(weight): name for name, weight in weights.items()}
        self._refuse_watched()
        self._nests = nests
        self._held = [self._held_by(nest[-1]) for nest in nests]
        self.peaks: dict[str, float] = {}
        self._begun = False
        self._is_open = False
        self._parts: dict[int, dict[str, Stepped]] = {}
        self._sizes: dict[str, float] = {}
        self._taken: dict[nn.Parameter, Tensor] = {}
        self._handles: list[Any] = []

    def _refuse_watched(self) -> None:
        for other in _WATCHING:
            if shared := self._names.keys() & other._names.keys():
                name = min(self._names[weight] for weight in shared)
                raise ValueError(
                    f"Something is attached to {name!r} already. First call detach() on the "
                    "pruner or holder that attach() or hold() returned."
                )

    @property
    def unheld(self) -> list[str]:
        """The names of weights that no optimizer holds."""
        held = set().union(*self._held)
        return [name for name in self._weights if name not in held]

    def check_held(self) -> None:
        """Raise a ValueError unless the optimizers hold all of the weights."""
        if missing := self.unheld:
            raise ValueError(
                f"The optimizer does not hold {missing[0]!r}, nor {len(missing) - 1} more of "
                f"{len(self._weights)} prunable weights. Give those that do as a list, or leave "
                "the weights out with `exclude`."
            )

    def register(self, watcher: Watcher) -> None:
        """Start calling `watcher`. The optimizers keep it alive, but it does not keep them."""
        for number, nest in enumerate(self._nests):
            before, after = self._hooks(number, watcher)
            for optimizer in nest:
                self._handles.append(optimizer.register_step_pre_hook(before))
                self._handles.append(optimizer.register_step_post_hook(after))
        self._nests.clear()
        _WATCHING.add(self)

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _WATCHING.discard(self)

    @torch.no_grad()
    def settle(self, watcher: Watcher) -> None:
        """Make the weights hold z if a step is open: its closure runs, or it has failed."""
        if self._is_open:
            self._is_open = False
            self._give_back()
            watcher.restore()

    def _hooks(self, number: int, watcher: Watcher) -> tuple[Any, Any]:
        """Return the hooks of optimizer `number`; `torch.compile` does not trace them."""

        def before(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._refuse_capture()
            self.settle(watcher)
            self._begun = True
            return self._prepared(number, optimizer, watcher, args, kwargs)

        def after(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            del args, kwargs
            self._is_open = False
            self._give_back()
            if not (names := self._held[number]):
                return
            if missing := names - self._held_by(optimizer):
                raise ValueError(
                    f"The optimizer does not hold {min(missing)!r} any more. Change its parameters "
                    "first, then attach."
                )
            with torch.no_grad():
                watcher.after_step(names, self._whole_step(number, optimizer))

        return torch.compiler.disable(before), torch.compiler.disable(after)

    def _whole_step(self, number: int, optimizer: Optimizer) -> dict[str, Stepped] | None:
        """Return how all weights were stepped, if the whole step has just ended.

        Return None if the step was counted already, if other optimizers are still to step, or if
        one of them skipped its step.
        """
        if not self._begun:
            return None
        self._begun = False
        if not _overflowed(optimizer):
            self._parts[number] = self._stepped(optimizer)
        holders = [each for each, names in enumerate(self._held) if names]
        if number != holders[-1]:
            return None
        parts, self._parts = self._parts, {}
        if len(parts) < len(holders):
            return None
        return {name: stepped for part in parts.values() for name, stepped in part.items()}

    def _prepared(
        self,
        number: int,
        optimizer: Optimizer,
        watcher: Watcher,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Have the watcher prepare the step: now, or whenever its closure has run."""

        @torch.no_grad()
        def prepare() -> None:
            moves = watcher.prepare(self._held[number])
            self._is_open = True
            self._sizes = self._gradient_sizes() if _loss_scale(optimizer) else {}
            if not moves:
                self._take(optimizer)

        closure = kwargs.get("closure") or next(iter(args[1:]), None)
        if closure is None:
            prepare()
            return None

        def run() -> Any:
            self.settle(watcher)
            loss = closure()
            prepare()
            return loss

        rest = {name: value for name, value in kwargs.items() if name != "closure"}
        return (args[0], run, *args[2:]), rest

    def _stepped(self, optimizer: Optimizer) -> dict[str, Stepped]:
        stepped = {}
        scale = _loss_scale(optimizer) or 1.0
        sizes = self._gradient_sizes() if scale != 1 else {}
        for group in optimizer.param_groups:
            lr = 1.0 if group.get("lr") is None else float(group["lr"])
            sign = -1.0 if group.get("maximize") else 1.0
            for name in self._names_in(group):
                seen = (self.peaks.get(name, 0.0), lr, float(group.get("initial_lr") or 0.0))
                self.peaks[name] = peak = max(seen)
                # If the step changed the gradient, it has divided the scale out.
                unscaled = sizes.get(name) != self._sizes.get(name)
                rate = sign * lr / peak if peak else 0.0
                stepped[name] = Stepped(rate, 1.0 if unscaled else scale)
        return stepped

    def _gradient_sizes(self) -> dict[str, float]:
        grads = {name: w.grad for name, w in self._weights.items() if w.grad is not None}
        sizes = [vector_norm(grad).cpu() for grad in grads.values()]
        return dict(zip(grads, map(float, sizes), strict=True))

    def _held_by(self, optimizer: Optimizer) -> set[str]:
        return {name for group in optimizer.param_groups for name in self._names_in(group)}

    def _names_in(self, group: Mapping[str, Any]) -> list[str]:
        return [self._names[id(p)] for p in group["params"] if id(p) in self._names]

    def _refuse_capture(self) -> None:
        on_gpu = any(weight.is_cuda for weight in self._weights.values())
        if on_gpu and torch.cuda.is_current_stream_capturing():
            raise ValueError(
                "optimizer.step() is being captured in a CUDA graph, but each step selects another "
                "mask. Capture only forward and backward."
            )

    def _take(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._taken[parameter] = parameter.grad
                    parameter.grad = None

    def _give_back(self) -> None:
        for parameter, gradient in self._taken.items():
            parameter.grad = gradient
        self._taken.clear()


_WATCHING: WeakSet[StepHooks] = WeakSet()


def _nest(optimizer: object) -> list[Optimizer]:
    """Return an optimizer and those inside it that have hooks, the innermost last."""
    nest: list[Optimizer] = []
    inside: object | None = optimizer
    while inside is not None:
        held = getattr(inside, "__dict__", {})
        table = held.get(_TABLE) if isinstance(inside, Optimizer) else None
        if table is not None and all(table is not vars(each)[_TABLE] for each in nest):
            nest.append(inside)  # pyright: ignore[reportArgumentType]
        inner = (held.get(name) for name in _INSIDE)
        inside = next((each for each in inner if hasattr(each, "param_groups")), None)
    if not nest:
        raise TypeError(
            f"`optimizer` must be a torch.optim.Optimizer or a list of them, got "
            f"{type(optimizer).__name__}, which has no hooks around its step. Optimizers that step "
            "within the backward pass are not supported."
        )
    return nest


def _loss_scale(optimizer: Optimizer) -> float | None:
    """Return the loss scale that `GradScaler` handed to a fused optimizer, if any."""
    scale = getattr(optimizer, "grad_scale", None)
    return None if scale is None else float(scale)


def _overflowed(optimizer: Optimizer) -> bool:
    """Return whether `GradScaler` told a fused optimizer to skip the step."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and float(found) > 0
