"""Prune in the user's own training loop: the optimizer proposes, the mask decides."""

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
    """Prune `model` while your own loop trains it with `optimizer`; the loop needs no change.

    After each optimizer step the mask has moved and pruned weights are exactly +0.0. Gradient
    accumulation, clipping, `GradScaler`, schedulers and `torch.compile` work as before.

    Args:
        model: Any module; it may be compiled or wrapped for data-parallel training.
        optimizer: The `torch.optim.Optimizer` that holds the prunable weights. If several hold
            them together (Muon and AdamW), a list in the order in which they step.
        sparsity: The fraction of units to remove; leave it out for n:m.
        steps: How many steps the optimizer will take. The sparsity rises over the first 60 % of
            them. After the last one the mask is fixed, and further training fine-tunes.
        method: "bip-plus", "gmp", "movement" or "bip", or a method object. "bip" starts at full
            sparsity, and every second step moves only the mask.
        structure: As in `prune`, like `scope`, `budget`, `round_to`, `include`, `exclude` and
            `allow_empty`.
        example_input: What the model takes; required for structure "group".
        **settings: Settings of the method, such as `ramp`, `initial_sparsity` and `kappa` for
            "bip-plus", or `score_lr`, `score_momentum` and `gamma` for "bip".

    Returns:
        A pruner with the masks and the ticket. The optimizer keeps it alive until `detach`.

    Raises:
        ValueError: The request does not fit the model, or a weight already has a pruner.
        TypeError: The optimizer has no step hooks, or the method has no such setting.

    Example:
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
    """The moving mask of a model; `attach` returns it.

    Saving the model at any time saves an ordinary sparse model. To resume the run, also save
    `state_dict()`, beside the state of the model and of the optimizer.
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
        """The current masks."""
        return self._rule.masks

    @property
    def sparsity(self) -> float:
        """The fraction of units that the current masks remove."""
        return self.masks.sparsity

    @property
    def is_at_target(self) -> bool:
        """Whether the ramp is over, so that there is a `ticket`."""
        return self._rule.sparsity == self._rule.target.sparsity

    @property
    def step(self) -> int:
        """How many of the `steps` are taken; steps skipped for overflow do not count."""
        return self._rule.step

    @property
    def history(self) -> list[Record]:
        """About a hundred records: the mask's sparsity, and its overlap and flips in one step."""
        return self._rule.history

    @property
    def theta(self) -> dict[str, Tensor]:
        """The weights beneath the mask by name; pruned ones have the value to return with."""
        return self._rule.theta

    def ticket(self) -> Ticket:
        """Return a copy of the model with its masks; accuracy and cost are unknown.

        Raises:
            ValueError: The target sparsity has not been reached yet.
        """
        rule = self._rule
        self._hooks.settle(rule)
        if not self.is_at_target:
            raise ValueError(
                f"The mask is at a sparsity of {rule.sparsity:.4g} on its way to "
                f"{rule.target.sparsity:g}, after {rule.step} of {rule.steps} `steps`. Train on, "
                "or attach with fewer `steps`. `masks` has the current mask."
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
        """Remove the hooks; this leaves an ordinary sparse model and an ordinary optimizer."""
        self._hooks.settle(self._rule)
        self._hooks.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return theta, scores, mask and position, for `torch.save`; tensors are not copied."""
        self._hooks.settle(self._rule)
        return {**self._rule.state_dict(), "peaks": dict(self._hooks.peaks)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`, bit for bit; this writes the model's weights.

        Load the states of the model and the optimizer too, in any order.

        Raises:
            ValueError: The state is of another method, run or model.
        """
        self._rule.load_state_dict(state)
        self._hooks.peaks = dict(state["peaks"])


def hold(model: nn.Module, optimizer: Optimizers, masks: Masks) -> Holder:
    """Keep pruned weights at +0.0 while you train on, with any optimizer.

    Without it, momentum, weight decay or Adam's moments would move pruned weights. Parameters
    without a mask are left alone.

    Args:
        model: The module that the masks belong to; its pruned weights are set to 0 at once.
        optimizer: As in `attach`, but it may hold only some of the weights.
        masks: The masks of a ticket or a pruner.

    Returns:
        A holder. The optimizer keeps it alive until `detach`.

    Raises:
        ValueError: The masks do not fit the model, or the optimizer holds none of their weights.
        TypeError: The optimizer has no step hooks.

    Example:
        `holder = biprune.hold(ticket.model, optimizer, ticket.masks)`, before your own loop.
    """
    _refuse_shards(model)
    weights = masks.weights_in(model)
    hooks = StepHooks(optimizer, weights)
    if len(hooks.unheld) == len(weights):
        raise ValueError("The optimizer holds none of the weights that `masks` are of.")
    masks.apply_(model)
    return Holder(weights, masks, hooks)


class Holder:
    """Keeps a fixed mask on a model; `hold` returns it."""

    def __init__(self, weights: Mapping[str, nn.Parameter], masks: Masks, hooks: StepHooks) -> None:
        self.masks = masks.to(next(iter(weights.values())).device)
        self._weights = weights
        self._hooks = hooks
        hooks.register(self)

    def apply_(self, model: nn.Module) -> None:
        """Prune a copy of the model in place, such as a moving average of its weights."""
        self.masks.apply_(model)

    def detach(self) -> None:
        """Remove the hooks; from then on the optimizer may move pruned weights."""
        self._hooks.settle(self)
        self._hooks.remove()

    def prepare(self, names: Iterable[str]) -> bool:
        """Let the optimizer take every step; called by the hooks."""
        del names
        return True

    def restore(self) -> None:
        """Prune again in the middle of a step; called by the hooks."""
        self.after_step(self._weights, None)

    def after_step(self, names: Iterable[str], stepped: Mapping[str, Stepped] | None) -> None:
        """Prune the weights that have moved; called by the hooks."""
        del stepped
        for name in names:
            weight = self._weights[name]
            where_kept(self.masks[name], weight, out=weight)


def _moving(method: str | MovingMask, settings: Mapping[str, Any]) -> MovingMask:
    """Return the method; only its rule has settings here, training is the user's."""
    if not isinstance(method, MovingMask):
        moving = {n: each for n, each in METHODS.items() if issubclass(each, MovingMask)}
        check_choice("method", method, moving)
        known = moving[method].rule_settings
        if unknown := sorted(settings.keys() - set(known)):
            raise TypeError(
                f"`{method}` has no setting {unknown[0]!r} in a loop of your own."
                f"{meant(unknown[0], known)} Its settings: {', '.join(known)}."
            )
    return get_method(method, settings)  # pyright: ignore[reportReturnType]


def _refuse_shards(model: nn.Module) -> None:
    """Raise a ValueError for sharded weights: a mask needs the whole weight in each process."""
    sharded = any(type(each).__name__ == "FullyShardedDataParallel" for each in model.modules())
    sharded |= any(type(p).__name__ == "DTensor" for p in model.parameters())
    if sharded:
        raise ValueError(
            "The model's weights are spread over processes (FSDP, DTensor), which is not supported "
            "yet. Use DistributedDataParallel, where every process holds whole weights."
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
            f"The gradient of {sparse[0]!r} will be sparse, which pruning cannot use. Build the "
            "embedding with sparse=False, or leave it out with `exclude`."
        )
