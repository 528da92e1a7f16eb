"""prune(): validate, copy, run the method, check the result, measure."""

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
    """Prune a copy of `model` to exactly the requested sparsity; `model` is not changed.

    Args:
        model: Any module, or a `TrainResult`, whose earlier states a method may rewind to.
        data: A Dataset, or any re-iterable of batches such as a DataLoader.
        method: A name of `METHODS`, or an object such as `BiPPlus(ramp=0.8)`.
        sparsity: The fraction of units to remove, in [0, 1).
        structure: What a unit is: "weight", "filter", "channel", "group" (coupled filters, which
            `Ticket.shrink` can remove completely), or n:m such as "2:4", which takes no `sparsity`.
        scope: Whether units compete over the whole model ("global"), or each layer loses the same
            fraction ("layer").
        budget: For groups, instead of `sparsity`: the fraction to keep, as {"macs": 0.5} or
            {"params": 0.3}.
        round_to: For groups: keep a multiple of this many units.
        attention: For groups: what a unit of attention is. "heads" are whole heads, "queries" the
            query heads alone, "width" is one index within all heads.
        streams: For groups: also prune residual streams; `Ticket.shrink` then returns a graph.
        include: Shell-style patterns of the parameters to prune; all others stay dense.
        exclude: Shell-style patterns of parameters that stay dense.
        allow_empty: Whether a layer may lose all its units.
        example_input: What the model takes, for finding groups; by default two samples of `data`.
        epochs: The length of the run. It scales every setting of the method that counts epochs,
            except those in `settings`.
        steps: The length in optimizer steps, instead of `epochs`.
        optimizer: "sgd", "adamw", or a function from parameter groups (weights; norms and biases)
            to an optimizer. By default AdamW for transformers and SGD for other models.
        lr_schedule: The name of a schedule, or a function from the finished fraction of the run to
            a factor on the rate. By default the method's.
        clip_grad: The largest gradient norm; by default 1 for AdamW, and none for SGD.
        accumulate: How many batches make one gradient.
        ema: The decay of a moving average of the weights, such as 0.999; the average is the result.
        seed: The seed of all randomness.
        loss: A function of (model, batch); by default the cross-entropy of `model(inputs)`.
        upper_loss: The loss that the mask learns by, if it has its own batches: in "bip", and in
            "bip-plus" with passes=2.
        upper_data: The batches that the mask learns from, such as validation data.
        distill: A teacher for both levels, or a `Distill` with its settings.
        evaluate: A function of the model, called once at the end; by default the test accuracy on
            a Dataset.
        validate: A function of the model, called after every epoch; by default the validation
            accuracy on a Dataset.
        channels_last: Whether to use the channels_last memory format; by default only for models
            of our registry.
        device: Where to train; by default where the model is.
        autocast: Whether to run in bfloat16 where that is safe.
        compile: Whether to use `torch.compile`.
        checkpoint: A folder for the state of the run. After an interruption the same call goes on
            from there and ends with the same bits.
        progress: A function called with an `Event` after every step, such as `print`.
        **settings: Settings of the method.

    Returns:
        The pruned model with its masks and measurements.

    Raises:
        ValueError: The request cannot be met, or its parts contradict each other.
        TypeError: An argument has the wrong type, or the method has no such setting.
        FloatingPointError: The loss, a gradient or a weight became infinite or NaN.

    Example:
        >>> import biprune
        >>> data = biprune.load_data("digits", seed=0)
        >>> model = biprune.create_model("resnet8", in_channels=1, width=4)
        >>> ticket = biprune.prune(model, data, sparsity=0.9, epochs=1)
        >>> ticket.masks.kept == round(0.1 * ticket.masks.total)
        True
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
            raise ValueError("`epochs` and `steps` both set the run's length: give one of them.")
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
    """The method's settings, without those that the user's own optimizer replaces."""
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
