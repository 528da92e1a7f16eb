"""prune(): validate, copy, run the method, check what it promised, measure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torch import nn

from biprune.core.parameters import Patterns
from biprune.core.selection import check_kept
from biprune.core.structure import Scope
from biprune.data import Dataset
from biprune.methods import Method, get_method
from biprune.methods.base import Outcome, Start
from biprune.pruning.request import Request, example_of, trial_run
from biprune.pruning.ticket import Ticket, check_masks, input_fields
from biprune.structured.calls import Attention, Inputs
from biprune.training.batches import Batch, Loss
from biprune.training.copying import copy_model
from biprune.training.loop import Event
from biprune.training.process import check_one_process
from biprune.training.train import Evaluate, TrainResult, check_functions, make_setup, measured


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
    epochs: int | None = None,
    seed: int = 0,
    include: Patterns = None,
    exclude: Patterns = None,
    allow_empty: bool = False,
    loss: Loss | None = None,
    evaluate: Evaluate | None = None,
    validate: Evaluate | None = None,
    channels_last: bool | None = None,
    autocast: bool = False,
    compile: bool = False,
    checkpoint: Path | str | None = None,
    progress: Callable[[Event], None] | None = None,
    example_input: Inputs | None = None,
    **settings: object,
) -> Ticket:
    """Prune a copy of `model` to exactly `sparsity`; the input is not changed.

    `model` is a `TrainResult`, whose earlier states methods may rewind to, or any module. `method`
    is a name, with its settings as keywords, or an object such as `BiPPlus(ramp=0.8)`; `epochs`
    scales whatever it counts in epochs, but for what the settings fix. `structure` is "weight",
    "filter", "channel", "group" (coupled filters, all of which `Ticket.shrink` can remove) or n:m
    such as "2:4", which takes no `sparsity`; `scope` ranks its units over the whole model
    ("global") or prunes the same fraction of every layer ("layer"). Groups take a `budget` in place
    of `sparsity`, {"macs": 0.5} or {"params": 0.3}, the fraction kept, and keep multiples of
    `round_to` units; they are found by running `example_input`, by default two samples of the data,
    whose shape the ticket remembers. Of attention a unit is a whole head, or with `attention`
    "queries" a single one of queries, with "width" an index of all heads; with `streams` residual
    streams are pruned as well, and what `Ticket.shrink` returns is a graph.
    `include` and `exclude` are shell-style patterns of parameter names. Every layer keeps at least
    one unit unless `allow_empty`. The rest is as in `train`.

    >>> import biprune
    >>> data = biprune.load_data("digits", seed=0)
    >>> model = biprune.create_model("resnet8", in_channels=1, width=4)
    >>> ticket = biprune.prune(model, data, sparsity=0.9, epochs=1)
    >>> ticket.masks.kept == round(0.1 * ticket.masks.total)
    True
    """
    check_one_process("prune")
    check_functions(loss=loss, evaluate=evaluate, validate=validate, progress=progress)
    request = Request(
        *(sparsity, structure, scope, budget, round_to, include, exclude, allow_empty),
        attention=attention,
        streams=streams,
    )
    chosen = get_method(method, settings, epochs)
    setup = make_setup(
        data,
        loss,
        validate,
        seed=seed,
        autocast=autocast,
        compile=compile,
        checkpoint=checkpoint,
        progress=progress,
    )
    start = _start(model, channels_last)
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
            settings=chosen.settings,
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


def _start(model: nn.Module | TrainResult, channels_last: bool | None) -> Start:
    if isinstance(model, TrainResult):
        copied = copy_model(model.model, channels_last=channels_last)
        return Start(copied, model.states, model.rewind_epoch)
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"`model` must be a torch.nn.Module or what `train` returned, got "
            f"{type(model).__name__}."
        )
    return Start(copy_model(model, channels_last=channels_last))
