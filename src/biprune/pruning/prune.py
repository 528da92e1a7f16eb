"""prune(): validate, copy, run the method, check what it promised, measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from biprune.core.parameters import Patterns
from biprune.core.selection import check_kept
from biprune.core.structure import Scope
from biprune.data import Dataset
from biprune.methods import Method, suited
from biprune.methods.base import Outcome, Start
from biprune.pruning.request import Request, example_of, trial_run
from biprune.pruning.ticket import Ticket, check_masks, input_fields
from biprune.structured.calls import Attention, Inputs
from biprune.training.batches import Batch, Loss
from biprune.training.copying import copy_model
from biprune.training.objectives import Distill, with_objectives
from biprune.training.process import check_one_process
from biprune.training.recipes import SAID_BY_OPTIMIZER, OptimizerName
from biprune.training.schedule import Shape
from biprune.training.setup import (
    Evaluate,
    MakeOptimizer,
    Progress,
    check_functions,
    make_setup,
    measured,
)
from biprune.training.train import TrainResult


def prune(
    model: nn.Module | TrainResult,
    data: Dataset | Iterable[Batch],
    method: str | Method = "bip-plus",
    *,
    sparsity: float | None = None,
    structure: str = "weight",
    scope: Scope | None = None,
    budget: Mapping[str, float] | None = None,
    round_to: int = 1,
    attention: Attention = "heads",
    streams: bool = False,
    include: Patterns = None,
    exclude: Patterns = None,
    allow_empty: bool = False,
    example_input: Inputs | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    optimizer: OptimizerName | MakeOptimizer | None = None,
    lr_schedule: Shape | Callable[[float], float] | None = None,
    clip_grad: float | None = None,
    accumulate: int = 1,
    ema: float | None = None,
    seed: int = 0,
    loss: Loss | None = None,
    upper_loss: Loss | None = None,
    upper_data: Iterable[Batch] | None = None,
    distill: nn.Module | Distill | None = None,
    evaluate: Evaluate | None = None,
    validate: Evaluate | None = None,
    channels_last: bool | None = None,
    device: torch.device | str | None = None,
    autocast: bool = False,
    compile: bool = False,
    checkpoint: Path | str | None = None,
    progress: Progress | None = None,
    **settings: object,
) -> Ticket:
    """Prune a copy of `model` to exactly what was asked for; the input is not changed.

    Example:
        >>> import biprune
        >>> data = biprune.load_data("digits", seed=0)
        >>> model = biprune.create_model("resnet8", in_channels=1, width=4)
        >>> ticket = biprune.prune(model, data, sparsity=0.9, epochs=1)
        >>> ticket.masks.kept == round(0.1 * ticket.masks.total)
        True

    Args:
        model: A `TrainResult`, whose earlier states methods may rewind to, or any module.
        data: A Dataset, or any re-iterable of batches such as a DataLoader.
        method: A name of `METHODS`, or an object such as `BiPPlus(ramp=0.8)`.
        sparsity: The fraction of units to remove, in [0, 1).
        structure: What a unit is: "weight", "filter", "channel", "group" (coupled filters, all of
            which `Ticket.shrink` can remove), or n:m such as "2:4", which takes no `sparsity`.
        scope: Whether units compete over the whole model ("global") or each layer loses the same
            fraction ("layer").
        budget: For groups in place of `sparsity`: {"macs": 0.5} or {"params": 0.3}, the fraction
            kept.
        round_to: Groups keep multiples of so many units.
        attention: What a unit of attention is: one of the "heads", one head of "queries", or with
            "width" an index of all heads.
        streams: Prune residual streams as well; what `Ticket.shrink` returns is then a graph.
        include: Shell-style patterns of parameter names: prune these alone.
        exclude: The same: leave these dense.
        allow_empty: Let a layer lose all its units.
        example_input: What the model takes, to find groups by; by default two samples of the data,
            whose shape the ticket remembers.
        epochs: Scales whatever the method counts in epochs, but for what `settings` fix.
        steps: In place of `epochs`: optimizer steps in all.
        optimizer: "sgd", "adamw", or a function that makes one of parameter groups (weights, and
            norms with biases). By default AdamW for transformers and SGD for all else.
        lr_schedule: A name, or a function of the finished fraction of the run; by default the
            method's.
        clip_grad: The largest norm of a gradient; by default 1 for AdamW.
        accumulate: Batches that make one gradient together.
        ema: The decay of a moving average of the weights, such as 0.999, which is then the result.
        seed: Of everything that is drawn.
        loss: A function of (model, batch); by default the cross-entropy of `model(inputs)`.
        upper_loss: What the mask learns by, for methods whose mask has a batch of its own: `bip`,
            and `bip-plus` with passes=2.
        upper_data: The batches that it learns from, such as validation data.
        distill: A teacher that both levels follow, or a `Distill` that says how.
        evaluate: Called with the model once, at the end; a Dataset brings its test accuracy.
        validate: Called with the model that trains after every epoch; a Dataset brings it too.
        channels_last: Lay convolutions out for speed; by default for models of our registry.
        device: Where to train; by default where the model is.
        autocast: Run in bfloat16 where that is safe.
        compile: Run through `torch.compile`.
        checkpoint: A folder. The run can be stopped at any time, and the same call continues it
            and ends with the same bits.
        progress: Hears an `Event` of every step; `print` shows what is in one.
        **settings: Those of the method.

    Returns:
        The pruned model with its masks and measurements.

    Raises:
        ValueError: What was asked for cannot be reached, or does not go together.
    """
    check_one_process("prune")
    names = {"optimizer": optimizer, "lr_schedule": lr_schedule}
    check_functions(names=names, evaluate=evaluate, upper_loss=upper_loss)
    request = Request(
        *(sparsity, structure, scope, budget, round_to, include, exclude, allow_empty),
        attention=attention,
        streams=streams,
    )
    if isinstance(lr_schedule, str):
        settings["schedule"] = lr_schedule
    chosen = suited(method, _module(model), settings, epochs, optimizer)
    setup = make_setup(
        data,
        loss,
        validate,
        seed=seed,
        optimizer=optimizer if callable(optimizer) else None,
        lr_schedule=lr_schedule if callable(lr_schedule) else None,
        clip_grad=clip_grad,
        accumulate=accumulate,
        ema=ema,
        autocast=autocast,
        compile=compile,
        checkpoint=checkpoint,
        progress=progress,
    )
    setup = with_objectives(setup, chosen.steps_per_iteration, upper_loss, upper_data, distill)
    if steps is not None:
        if epochs is not None:
            raise ValueError("`epochs` and `steps` say the same thing twice: give one of them.")
        epochs, setup = setup.paced(steps, chosen.steps_per_iteration)
        chosen = chosen.scaled(epochs)
    start = _start(model, channels_last, device)
    if example_input is None:
        example_input = example_of(data, start.model)
    target, left_out = request.target(start.model, example_input, trial_run(start.model, setup))
    outcome = chosen.run(start, setup, target)
    for passed in [*outcome.rounds, outcome]:
        asked = target.sparsity if passed.sparsity is None else passed.sparsity
        check_kept(passed.masks, asked, allow_empty=allow_empty)

    def measure(outcome: Outcome) -> Ticket:
        outcome.model.zero_grad(set_to_none=True)
        outcome.model.eval()
        check_masks(outcome.model, outcome.masks)
        return Ticket(
            model=outcome.model,
            masks=outcome.masks,
            accuracy=measured(outcome.model, data, evaluate),
            cost=outcome.cost,
            history=outcome.history,
            method=chosen.name,
            settings=_told(chosen, optimizer),
            sparsity=target.sparsity if outcome.sparsity is None else outcome.sparsity,
            seed=seed,
            data=setup.data,
            left_out=left_out,
            chosen=request.chosen,
            **input_fields(example_input),
            dense_accuracy=model.accuracy if isinstance(model, TrainResult) else None,
            rounds=[measure(earlier) for earlier in outcome.rounds],
        )

    return measure(outcome)


def _module(model: nn.Module | TrainResult) -> nn.Module:
    module = model.model if isinstance(model, TrainResult) else model
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"`model` must be a torch.nn.Module or what `train` returned, got "
            f"{type(model).__name__}."
        )
    return module


def _told(method: Method, optimizer: object) -> dict[str, Any]:
    """The settings of the method, but for those that an optimizer of the user's says by itself."""
    if not callable(optimizer):
        return method.settings
    kept = {name: value for name, value in method.settings.items() if name not in SAID_BY_OPTIMIZER}
    return {**kept, "optimizer": getattr(optimizer, "__name__", type(optimizer).__name__)}


def _start(
    model: nn.Module | TrainResult, channels_last: bool | None, device: torch.device | str | None
) -> Start:
    copied = copy_model(_module(model), channels_last=channels_last).to(device)
    if isinstance(model, TrainResult):
        return Start(copied, model.states, model.rewind_epoch)
    return Start(copied)
