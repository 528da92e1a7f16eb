"""Pruning in a training loop of the user's: the optimizer proposes, the mask decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from biprune.core.checks import check_choice
from biprune.core.masked import where_kept
from biprune.core.masks import Masks
from biprune.core.parameters import Patterns, unwrap
from biprune.core.structure import Scope
from biprune.methods import METHODS, get_method, meant
from biprune.methods.attached import Rule
from biprune.methods.moving import MovingMask
from biprune.pruning.request import Request
from biprune.pruning.ticket import Ticket, check_masks, input_fields
from biprune.structured.calls import Inputs, as_inputs
from biprune.training.copying import copied
from biprune.training.loop import Cost
from biprune.training.setup import Record
from biprune.training.step_hooks import Optimizers, StepHooks, Stepped


def attach(
    model: nn.Module,
    optimizer: Optimizers,
    sparsity: float | None = None,
    *,
    steps: int,
    method: str | MovingMask = "bip-plus",
    structure: str = "weight",
    scope: Scope | None = None,
    budget: Mapping[str, float] | None = None,
    round_to: int = 1,
    include: Patterns = None,
    exclude: Patterns = None,
    allow_empty: bool = False,
    example_input: Inputs | None = None,
    **settings: object,
) -> Pruner:
    """Prune `model` while your own loop trains it by `optimizer`; the loop stays as it is.

    After each step of the optimizer the pruned weights are +0.0 exactly and the mask has moved.
    Accumulation, clipping, `GradScaler`, schedulers and `torch.compile` need nothing of you.

    >>> import torch, biprune
    >>> model = torch.nn.Linear(8, 2)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> pruner = biprune.attach(model, optimizer, sparsity=0.5, steps=10)
    >>> for _ in range(10):
    ...     model(torch.ones(4, 8)).square().sum().backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> pruner.masks.kept, int(torch.count_nonzero(model.weight))
    (8, 8)

    Args:
        model: Any module; compiled or wrapped for data-parallel training, too.
        optimizer: A `torch.optim.Optimizer` that holds the prunable weights, or a list of those
            that do together (Muon and AdamW), in the order in which they step.
        sparsity: The fraction of units to remove; n:m says it by itself.
        steps: How many steps the optimizer will take. Over the first 60 % of them the sparsity
            rises along a cubic curve. When they are over the mask is fixed, and further training
            is fine-tuning.
        method: "bip-plus", "gmp" or "movement"; or "bip", as published, at the full sparsity from
            the start: there every second step moves the mask and leaves the weights alone.
        structure: As in `prune`, with `scope`, `budget`, `round_to`, `include`, `exclude` and
            `allow_empty`.
        example_input: What the model takes; needed for structure "group".
        **settings: Those of the method: `ramp` and `initial_sparsity`, `kappa` of "bip-plus"; or
            `score_lr`, `score_momentum` and `gamma`, of "bip".

    Returns:
        The pruner, which the optimizer keeps alive until `detach`.

    Raises:
        ValueError: The weights cannot be pruned in this way, or something is attached to them.
        TypeError: The optimizer has no hooks around its step.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}.")
    chosen = _moving(method, settings)
    request = Request(sparsity, structure, scope, budget, round_to, include, exclude, allow_empty)
    _refuse_shards(model)
    run = None if example_input is None else lambda: model(*as_inputs(example_input))
    target, left_out = request.target(model, example_input, run)
    weights = target.weights(model)
    _refuse_unfit(model, weights)
    hooks = StepHooks(optimizer, weights)
    hooks.check_held()
    with torch.no_grad():
        rule = chosen.rule(model, target, chosen, steps)
    fields = {"left_out": left_out, "chosen": request.chosen, **input_fields(example_input)}
    return Pruner(model, rule, hooks, fields)


class Pruner:
    """What `attach` returns: the mask that moves with every step of the optimizer.

    `masks` are those that the weights show now, `history` how they moved: a record for every
    hundredth of the steps. Saving the model at any time saves an ordinary sparse one; to resume the
    run save `state_dict()` beside the model's and the optimizer's.
    """

    def __init__(
        self, model: nn.Module, rule: Rule, hooks: StepHooks, ticket_fields: Mapping[str, Any]
    ) -> None:
        self.model = model
        self._rule = rule
        self._hooks = hooks
        self._ticket_fields = ticket_fields
        hooks.register(rule)

    @property
    def masks(self) -> Masks:
        """The mask that the weights show now."""
        return self._rule.masks

    @property
    def sparsity(self) -> float:
        """The removed fraction of units now; on its way to the target while the ramp lasts."""
        return self.masks.sparsity

    @property
    def is_at_target(self) -> bool:
        """Whether the ramp is over, so that there is a `ticket`."""
        return self._rule.sparsity == self._rule.target.sparsity

    @property
    def step(self) -> int:
        """How many of the `steps` are taken; a step that was skipped for overflow is none."""
        return self._rule.step

    @property
    def history(self) -> list[Record]:
        """Sparsity, overlap and flips of the mask in single steps, a hundred or so over the run."""
        return self._rule.history

    @property
    def theta(self) -> dict[str, Tensor]:
        """The weights beneath the mask by name, with what pruned ones would come back with."""
        return self._rule.theta

    def ticket(self) -> Ticket:
        """A copy of the model as it is, with its masks. Accuracy and cost are yours to know.

        Raises:
            ValueError: The ramp is not over, so that less is pruned than was asked for.
        """
        rule = self._rule
        self._hooks.settle(rule)
        if not self.is_at_target:
            raise ValueError(
                f"The mask is at a sparsity of {rule.sparsity:.4g} on its way to "
                f"{rule.target.sparsity:g}, after {rule.step} of {rule.steps} `steps`. Train on, "
                "or attach with the steps that are taken; `masks` has the mask as it is."
            )
        check_masks(self.model, self.masks)
        return Ticket(
            model=copied(unwrap(self.model)).eval(),
            masks=self.masks,
            accuracy=None,
            cost=Cost(),
            history=list(self.history),
            method=rule.method.name,
            settings=rule.settings,
            sparsity=rule.sparsity,
            seed=0,
            **self._ticket_fields,
        )

    def detach(self) -> None:
        """Leave an ordinary sparse model and an ordinary optimizer; the masks stay known here."""
        self._hooks.settle(self._rule)
        self._hooks.remove()

    def state_dict(self) -> dict[str, Any]:
        """theta, scores, mask and where the run is, for `torch.save`; tensors are not copied."""
        self._hooks.settle(self._rule)
        return {**self._rule.state_dict(), "peaks": dict(self._hooks.peaks)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`, bit for bit; the model's weights are written.

        Load the model and the optimizer as usual; in which order does not matter.
        """
        self._rule.load_state_dict(state)
        self._hooks.peaks = dict(state["peaks"])


def hold(model: nn.Module, optimizer: Optimizers, masks: Masks) -> Holder:
    """Keep what `masks` prune at +0.0 while you train on, by any optimizer.

    Neither momentum nor decay nor the moments of Adam bring a pruned weight back. Parameters that
    the masks do not name are left alone.

    Args:
        model: The module that the masks are of; its pruned weights are set to 0 at once.
        optimizer: As in `attach`; it need not hold all of the weights.
        masks: Those of a ticket or a pruner.

    Returns:
        The holder, which the optimizer keeps alive until `detach`.
    """
    _refuse_shards(model)
    weights = masks.weights_in(model)
    hooks = StepHooks(optimizer, weights)
    if len(hooks.unheld) == len(weights):
        raise ValueError("The optimizer holds none of the weights that `masks` are of.")
    masks.apply_(model)
    return Holder(weights, masks, hooks)


class Holder:
    """What `hold` returns: a mask that stays."""

    def __init__(self, weights: Mapping[str, nn.Parameter], masks: Masks, hooks: StepHooks) -> None:
        self.masks = masks.to(next(iter(weights.values())).device)
        self._weights = weights
        self._hooks = hooks
        hooks.register(self)

    def apply_(self, model: nn.Module) -> None:
        """Prune a copy of the model, such as a moving average of its weights, in place."""
        self.masks.apply_(model)

    def detach(self) -> None:
        """Leave an ordinary optimizer; from then on it may move pruned weights."""
        self._hooks.settle(self)
        self._hooks.remove()

    def prepare(self, names: Iterable[str]) -> bool:
        """Every step is the optimizer's."""
        del names
        return True

    def restore(self) -> None:
        """Called by the hooks."""
        self.after_step(self._weights, None)

    def after_step(self, names: Iterable[str], stepped: Mapping[str, Stepped] | None) -> None:
        """Called by the hooks."""
        del stepped
        for name in names:
            weight = self._weights[name]
            where_kept(self.masks[name], weight, out=weight)


def _moving(method: str | MovingMask, settings: Mapping[str, Any]) -> MovingMask:
    """The method, with settings of its rule; its recipe is the user's optimizer here."""
    moving = {n: each for n, each in METHODS.items() if issubclass(each, MovingMask)}
    if isinstance(method, MovingMask):
        return get_method(method, settings)  # pyright: ignore[reportReturnType]
    check_choice("method", method, moving)
    known = moving[method].rule_settings
    if unknown := sorted(settings.keys() - set(known)):
        raise TypeError(
            f"`{method}` has no setting {unknown[0]!r} in a loop of your own."
            f"{meant(unknown[0], known)} Its settings: {', '.join(known)}."
        )
    return get_method(method, settings)  # pyright: ignore[reportReturnType]


def _refuse_shards(model: nn.Module) -> None:
    """Of a sharded weight a process holds a part, and a mask is of the whole."""
    sharded = any(type(each).__name__ == "FullyShardedDataParallel" for each in model.modules())
    sharded |= any(type(p).__name__ == "DTensor" for p in model.parameters())
    if sharded:
        raise ValueError(
            "The model's weights are spread over processes (FSDP, DTensor), which is not supported "
            "yet. Use DistributedDataParallel, where every process holds them whole."
        )


def _refuse_unfit(model: nn.Module, weights: Mapping[str, nn.Parameter]) -> None:
    if len(devices := {weight.device for weight in weights.values()}) > 1:
        listed = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"The prunable weights are on several devices: {listed}. Put them on one.")
    ids = {id(weight): name for name, weight in weights.items()}
    embeddings = (m for m in model.modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag)))
    sparse = [ids[id(m.weight)] for m in embeddings if m.sparse and id(m.weight) in ids]
    if sparse:
        raise ValueError(
            f"The gradient of {sparse[0]!r} will be sparse, and sparse gradients cannot be pruned "
            "by. Build the embedding with sparse=False, or leave it out with `exclude`."
        )
