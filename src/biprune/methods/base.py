"""What every pruning method is: settings, and one call from a start to an outcome."""

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
    """The model a method begins with, its own to change, and its states at some epochs.

    `states` is None for a bare module, which has no past to go back to.
    """

    model: nn.Module
    states: Mapping[int, State] | None = field(default=None, repr=False)
    rewind_epoch: int = 0

    def rewind_(self, epoch: int | None) -> str:
        """Restore the whole state of `epoch` (None: the dense run's own 5 %) and say so."""
        if self.states is None:
            return "not rewound: a bare module was given, which carries no earlier state"
        self.check_rewind(epoch)
        epoch = self.rewind_epoch if epoch is None else epoch
        load_tensors_(self.model, self.states[epoch])
        return f"rewound to epoch {epoch}"

    def check_rewind(self, epoch: int | None) -> None:
        """Refuse an epoch whose state was not kept."""
        epoch = self.rewind_epoch if epoch is None else epoch
        if self.states is not None and epoch not in self.states:
            raise ValueError(
                f"The state of epoch {epoch}, to rewind to, was not kept; kept: "
                f"{sorted(self.states)}. Train with rewind_epochs={sorted({0, epoch})} to keep it."
            )


@dataclass(frozen=True)
class Target:
    """How much to prune, in which units, of which tensors.

    `found` are further prunable weights, which only a run of the model tells (see `uses`).
    """

    sparsity: float
    structure: Structure
    include: Patterns = None
    exclude: Patterns = None
    allow_empty: bool = False
    found: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, Any]:
        """Every field by name, JSON-able: what a checkpoint must share to be resumed."""
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
        """The rows whose scores stand still while they keep nothing; None if all are scored."""
        return None if dead or self.structure.spans_tensors else Rows(model, self.found)

    def check(self, model: nn.Module) -> None:
        """Refuse what cannot be reached on `model`, before anything is trained."""
        check_sparsity(self.sparsity)
        sizes = self.structure.num_units(self.weights(model))
        self.structure.check_reachable(self.sparsity, sizes, allow_empty=self.allow_empty)

    def select(
        self,
        scores: Mapping[str, Tensor],
        sparsity: float | None = None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Masks:
        """Masks at the target sparsity, or at another on the way to it.

        Given `weights`, the scores are learned ones, shaped as `Structure.scored` says.
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
        """The same from scores of units, for methods with a pooling of their own."""
        sparsity = self.sparsity if sparsity is None else sparsity
        kept = select_units(units, sparsity, self.structure, allow_empty=self.allow_empty)
        return Masks(self.structure.expand(kept, weights), self.structure)


@dataclass(frozen=True)
class Outcome:
    """A pruned model before it is measured: pruned weights exactly zero.

    An iterative method leaves the outcome of every earlier round in `rounds`, each with the
    `sparsity` that was asked for there; None is the target's.
    """

    model: nn.Module
    masks: Masks
    history: list[Record]
    cost: Cost
    sparsity: float | None = None
    rounds: list[Outcome] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Method(ABC):
    """A pruning method: its fields are its settings, by default those of its paper.

    `starts_from` says which weights it scores, of the trained model ("dense") or the untrained one
    ("init"); `retrains` whether it trains the pruned model anew. `settings_version` is raised when
    a default changes, so that stored runs are not mistaken.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    citation: ClassVar[str]
    starts_from: ClassVar[Literal["dense", "init"]]
    retrains: ClassVar[bool]
    prunes: ClassVar[bool] = True
    has_rounds: ClassVar[bool] = False  # its epochs are those of each of several rounds
    settings_version: ClassVar[int] = 1

    @abstractmethod
    def run(self, start: Start, setup: Setup, target: Target) -> Outcome:
        """Prune `start.model` in place to `target`."""

    def scaled(self, epochs: int) -> Self:
        """The same method over another number of epochs, everything that counts epochs with it."""
        check_whole("epochs", epochs, at_least=1)
        return self

    def covering(self, sparsities: Iterable[float], below: float) -> Self:
        """The same method, with tickets at those of `sparsities` that it passes on its way."""
        del sparsities, below
        return self

    @property
    def steps_per_iteration(self) -> int:
        """Optimizer steps, each with a batch of its own, that make one iteration."""
        return 1

    def data_passes(self, sparsity: float) -> float:
        """Forward-backward passes over the training data that reaching `sparsity` takes."""
        del sparsity
        return 0

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by name, as JSON would give it back."""
        named = asdict(self).items()
        return {name: list(v) if isinstance(v, tuple) else v for name, v in named}


@dataclass(frozen=True)
class TrainingMethod(Method):
    """A method that trains the weights; the fields are its recipe."""

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
        """The settings as a recipe, or over other epochs; the warm-up keeps its share."""
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
        """One an epoch, whatever the sparsity."""
        del sparsity
        return self.epochs

    def scaled(self, epochs: int) -> Self:
        """The same training over another number of epochs; the warm-up keeps its share."""
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
    """Train the kept weights of `model` in place, `after` another run; `note` says from where."""
    before = Fit() if after is None else after
    run = train_(model, recipe, setup, masks=masks, stage=stage)
    history = [*before.history, {"stage": "start", "note": note}, *run.history]
    return Outcome(model, masks, history, before.cost + run.cost)


def mask_record(masks: Masks, before: Masks) -> Record:
    """How the mask moved in an epoch, for the history."""
    return {
        "sparsity": masks.sparsity,
        "iou": masks.overlap(before),
        "flip_rate": masks.flip_rate(before),
        "layer_sparsity": {name: count.sparsity for name, count in masks.per_layer().items()},
    }


def magnitudes(weights: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """|theta| as scores, sharing no storage with the weights."""
    return {name: weight.detach().abs() for name, weight in weights.items()}
