"""What a pruning method is: its settings, and one call that takes a start to an outcome."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

from torch import Tensor, nn

from biprune.core.checks import check_whole
from biprune.core.masked import Rows
from biprune.core.masks import Masks
from biprune.core.parameters import Patterns, prunable
from biprune.core.selection import check_sparsity, select, select_units
from biprune.core.structure import Structure
from biprune.training.checkpoint import State, load_tensors_
from biprune.training.loop import Cost, Fit
from biprune.training.recipes import OptimizerName, Recipe
from biprune.training.schedule import Shape
from biprune.training.setup import Record, Setup
from biprune.training.train import train_


@dataclass(frozen=True)
class Start:
    """The model that a method may change, and the states it can rewind to, by epoch.

    `states` is None if the user gave a bare module.
    """

    model: nn.Module
    states: Mapping[int, State] | None = field(default=None, repr=False)
    rewind_epoch: int = 0

    def rewind_(self, epoch: int | None) -> str:
        """Restore the state of `epoch` (None: `rewind_epoch`); return a note for the history."""
        if self.states is None:
            return "not rewound: a bare module was given, which carries no earlier state"
        self.check_rewind(epoch)
        epoch = self.rewind_epoch if epoch is None else epoch
        load_tensors_(self.model, self.states[epoch])
        return f"rewound to epoch {epoch}"

    def check_rewind(self, epoch: int | None) -> None:
        """Raise a ValueError if the state of `epoch` was not kept."""
        epoch = self.rewind_epoch if epoch is None else epoch
        if self.states is not None and epoch not in self.states:
            raise ValueError(
                f"Cannot rewind to epoch {epoch}: its state was not kept, only those of "
                f"{sorted(self.states)}. Train with rewind_epochs={sorted({0, epoch})} to keep it."
            )


@dataclass(frozen=True)
class Target:
    """How much to prune, in which units and in which tensors.

    Args:
        sparsity: The fraction of units to remove.
        structure: What a unit is.
        include: Name patterns of the parameters to prune; None means the usual ones.
        exclude: Name patterns of the parameters to leave dense.
        allow_empty: Whether a layer may lose all its units.
        found: Further prunable weights, which were found by running the model (see `core.uses`).
    """

    sparsity: float
    structure: Structure
    include: Patterns = None
    exclude: Patterns = None
    allow_empty: bool = False
    found: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields as JSON values; a checkpoint must agree on them to be resumed."""
        return {
            "sparsity": self.sparsity,
            **self.structure.settings,
            "include": self.include,
            "exclude": self.exclude,
            "allow_empty": self.allow_empty,
            **({"found": sorted(self.found)} if self.found else {}),
        }

    def weights(self, model: nn.Module) -> dict[str, nn.Parameter]:
        """The prunable tensors of `model`."""
        return prunable(
            model, self.structure, include=self.include, exclude=self.exclude, found=self.found
        )

    def scored_rows(self, model: nn.Module, *, dead: bool) -> Rows | None:
        """The rows whose scores stop moving while they are dead; None if all are scored."""
        return None if dead or self.structure.spans_tensors else Rows(model, self.found)

    def check(self, model: nn.Module) -> None:
        """Raise a ValueError if the target cannot be reached on `model`."""
        check_sparsity(self.sparsity)
        sizes = self.structure.num_units(self.weights(model))
        self.structure.check_reachable(self.sparsity, sizes, allow_empty=self.allow_empty)

    def select(
        self,
        scores: Mapping[str, Tensor],
        sparsity: float | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Masks:
        """Select masks by `scores`, at the target sparsity or at another one on the way to it.

        With `weights`, the scores are learned ones, shaped as `Structure.scored` says.
        """
        sparsity = self.sparsity if sparsity is None else sparsity
        return select(
            scores, sparsity, self.structure, allow_empty=self.allow_empty, weights=weights
        )

    def select_units(
        self,
        weights: Mapping[str, Tensor],
        units: Mapping[str, Tensor],
        sparsity: float | None = None,
    ) -> Masks:
        """Select masks by one score per unit, for methods that pool scores themselves."""
        sparsity = self.sparsity if sparsity is None else sparsity
        kept = select_units(units, sparsity, self.structure, allow_empty=self.allow_empty)
        return Masks(self.structure.expand(kept, weights), self.structure)


@dataclass(frozen=True)
class Outcome:
    """A pruned model that has not been measured yet; its pruned weights are exactly zero.

    `rounds` are the outcomes of an iterative method's earlier rounds. `sparsity` is what the round
    aimed at; None means the target.
    """

    model: nn.Module
    masks: Masks
    history: list[Record]
    cost: Cost
    sparsity: float | None = None
    rounds: list[Outcome] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Method(ABC):
    """A pruning method. Its fields are its settings; the defaults are those of its paper.

    Attributes:
        starts_from: Which weights it scores: those of the trained model ("dense") or of the
            untrained one ("init").
        retrains: Whether it trains the pruned model afterwards.
        prunes: Whether it removes anything.
        has_rounds: Whether it runs its epochs once per round, in several rounds.
        settings_version: Raised when a default changes, so that a stored run with the old defaults
            is not taken for a new one.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    citation: ClassVar[str]
    starts_from: ClassVar[Literal["dense", "init"]]
    retrains: ClassVar[bool]
    prunes: ClassVar[bool] = True
    has_rounds: ClassVar[bool] = False
    settings_version: ClassVar[int] = 1

    @abstractmethod
    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Prune `start.model` in place to `target`."""

    def scaled(self, epochs: int) -> Self:
        """Return the method for a run of `epochs`; settings that count epochs scale with it."""
        check_whole("epochs", epochs, at_least=1)
        return self

    def covering(self, sparsities: Iterable[float], below: float) -> Self:
        """Return the method, set to leave a ticket at each of `sparsities` that it passes."""
        del sparsities, below
        return self

    @property
    def steps_per_iteration(self) -> int:
        """How many optimizer steps make one iteration; each step has its own batch."""
        return 1

    def data_passes(self, sparsity: float) -> float:
        """Return how many passes over the training data it takes to reach `sparsity`."""
        del sparsity
        return 0

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, as JSON values."""
        named = asdict(self).items()
        return {name: list(v) if isinstance(v, tuple) else v for name, v in named}


@dataclass(frozen=True)
class TrainingMethod(Method):
    """A method that trains the weights; its fields are the training recipe.

    Args:
        epochs: Passes over the training data.
        lr: The learning rate at its peak.
        momentum: The momentum of SGD.
        weight_decay: The weight decay; AdamW does not decay norms and biases.
        schedule: "step", "cosine" or "constant".
        warmup_epochs: Epochs of linear warm-up, included in `epochs`.
        nesterov: Whether SGD uses Nesterov's momentum.
        optimizer: "sgd" or "adamw".
    """

    starts_from: ClassVar[Literal["dense", "init"]] = "dense"
    retrains: ClassVar[bool] = True

    epochs: int = 160
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: Shape = "step"
    warmup_epochs: float = 0.0
    nesterov: bool = False
    optimizer: OptimizerName = "sgd"

    def __post_init__(self) -> None:
        self.recipe()

    def recipe(self, epochs: int | None = None) -> Recipe:
        """Return the recipe for `epochs` (None: the method's own); warm-up keeps its share."""
        epochs = self.epochs if epochs is None else epochs
        return Recipe(
            epochs,
            self.lr,
            self.momentum,
            self.weight_decay,
            self.schedule,
            warmup_epochs=self.warmup_epochs * epochs / self.epochs,
            nesterov=self.nesterov,
            optimizer=self.optimizer,
        )

    def data_passes(self, sparsity: float) -> float:
        """Return the epochs, whatever the sparsity."""
        del sparsity
        return self.epochs

    def scaled(self, epochs: int) -> Self:
        """Return the method for a run of `epochs`; warm-up keeps its share."""
        warmup = self.warmup_epochs * epochs / self.epochs
        return replace(super().scaled(epochs), epochs=epochs, warmup_epochs=warmup)


def retrain_(
    model: nn.Module,
    masks: Masks,
    recipe: Recipe,
    setup: Setup,
    note: str,
    *,
    stage: str = "retrain",
    after: Fit | Outcome | None = None,
) -> Outcome:
    """Train the kept weights of `model` in place.

    `note` tells the history which weights training starts from. `stage` names this part of the run,
    and `after` is an earlier part, whose history and cost come first.
    """
    before = Fit() if after is None else after
    run = train_(model, recipe, setup, masks=masks, stage=stage)
    history = [*before.history, {"stage": "start", "note": note}, *run.history]
    return Outcome(model, masks, history, before.cost + run.cost)


def mask_record(masks: Masks, before: Masks) -> Record:
    """Describe for the history how the mask moved since `before`."""
    return {
        "sparsity": masks.sparsity,
        "iou": masks.overlap(before),
        "flip_rate": masks.flip_rate(before),
        "layer_sparsity": {name: count.sparsity for name, count in masks.per_layer().items()},
    }


def magnitudes(weights: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return |theta| as scores that share no storage with the weights."""
    return {name: weight.detach().abs() for name, weight in weights.items()}
