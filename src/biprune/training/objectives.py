"""Further objectives: following a teacher, and resisting an adversary."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax

from biprune.core.checks import check_part, check_positive, check_whole
from biprune.training.batches import (
    Batch,
    Loss,
    classification_loss,
    count_batches,
    device_of,
    evaluation_mode,
    logits_of,
)
from biprune.training.seeding import forked_rng
from biprune.training.setup import Setup


@dataclass(frozen=True)
class Distill:
    """A loss that also follows a teacher (Hinton, Vinyals, Dean 2015).

        (1 - weight) * loss + weight * temperature^2 * KL(teacher || student)

    The divergence is taken at `temperature` and averaged over the samples. The teacher runs in eval
    mode and is not trained. Batches are (inputs, ...), a mapping, or what the model takes. If
    `loss` runs the model more than once, as `Adversarial` does, the logits of the last pass count.

    Args:
        teacher: A model with the same classes, such as the dense one.
        temperature: What the logits of both models are divided by.
        weight: The weight of the teacher, in (0, 1].
        loss: The loss on the data; by default the loss of the run.

    Example:
        >>> import biprune, torch
        >>> teacher = torch.nn.Linear(4, 3)
        >>> loss = biprune.Distill(teacher, weight=1.0)
        >>> batch = (torch.ones(2, 4), torch.tensor([0, 1]))
        >>> abs(round(loss(teacher, batch).item(), 6))
        0.0
    """

    teacher: nn.Module
    temperature: float = 2.0
    weight: float = 0.5
    loss: Loss = classification_loss

    def __post_init__(self) -> None:
        if not isinstance(self.teacher, nn.Module):
            raise TypeError(
                f"`teacher` must be a torch.nn.Module, got {type(self.teacher).__name__}."
            )
        check_positive("temperature", self.temperature)
        check_part("weight", self.weight)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        device = device_of(model)
        if device_of(self.teacher) != device:
            self.teacher.to(device)
        with torch.no_grad(), evaluation_mode(self.teacher):
            taught = log_softmax(_logits(self.teacher, batch) / self.temperature, dim=-1)
        seen: list[Tensor] = []
        handle = model.register_forward_hook(lambda _, __, output: seen.append(logits_of(output)))
        try:
            own = self.loss(model, batch) if self.weight < 1 else None
            logits = seen[-1] if seen else _logits(model, batch)
        finally:
            handle.remove()
        if logits.shape != taught.shape:
            raise ValueError(
                f"The teacher's logits are of shape {tuple(taught.shape)}, the model's of "
                f"{tuple(logits.shape)}: both must have the same classes."
            )
        learned = log_softmax(logits / self.temperature, dim=-1)
        divergence = kl_div(learned, taught, log_target=True, reduction="none").sum(-1).mean()
        following = self.temperature**2 * divergence
        if own is None:
            return following
        return (1 - self.weight) * own + self.weight * following


@dataclass(frozen=True)
class Adversarial:
    """The loss on adversarial inputs, by projected gradient ascent (Madry et al., ICLR 2018).

        x <- project(x + step_size * sign(dl/dx)),  within epsilon of the data in every entry

    Batches must be (inputs, labels) with floating-point inputs. The search leaves no gradients in
    the parameters. It runs in eval mode, so only the final pass updates running statistics.

    Args:
        epsilon: The largest change of an entry, in the units of the model's inputs.
        steps: The steps of the search, each a forward and a backward pass.
        step_size: The size of a step; by default 2.5 * epsilon / steps.
        loss: The loss to raise; by default the loss of the run.

    Example:
        >>> import biprune, torch
        >>> model, batch = torch.nn.Linear(4, 3), (torch.ones(2, 4), torch.tensor([0, 1]))
        >>> worst = biprune.Adversarial(epsilon=0.1)
        >>> bool(worst(model, batch) > worst.loss(model, batch))
        True
    """

    epsilon: float
    steps: int = 7
    step_size: float | None = None
    loss: Loss = classification_loss

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_whole("steps", self.steps, at_least=1)
        if self.step_size is not None:
            check_positive("step_size", self.step_size)

    def __call__(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss on the adversarial batch."""
        return self.loss(model, self.attacked(model, batch))

    def attacked(self, model: nn.Module, batch: Batch) -> Batch:
        """Return the batch with inputs that raise the loss."""
        if not (isinstance(batch, (tuple, list)) and batch and _is_float(batch[0])):
            raise ValueError(
                "`Adversarial` moves the inputs of batches (inputs, labels), which must be "
                "floating-point tensors."
            )
        inputs, *rest = batch
        size = 2.5 * self.epsilon / self.steps if self.step_size is None else self.step_size
        moved = inputs.detach()
        with evaluation_mode(model), torch.enable_grad():
            for _ in range(self.steps):
                moved = moved.detach().requires_grad_()
                loss = self.loss(model, (moved, *rest))
                (slope,) = torch.autograd.grad(loss, moved)
                change = (moved.detach() + size * slope.sign() - inputs).clamp(
                    -self.epsilon, self.epsilon
                )
                moved = inputs + change
        return (moved.detach(), *rest)


def with_objectives(
    setup: Setup,
    levels: int,
    upper_loss: Loss | None,
    upper_data: Iterable[Batch] | None,
    distill: nn.Module | Distill | None,
) -> Setup:
    """Return `setup` with the losses and data of a method with this many `levels`."""
    upper = {"upper_loss": upper_loss, "upper_data": upper_data}
    if levels == 1 and (given := [name for name, value in upper.items() if value is not None]):
        raise ValueError(
            f"`{given[0]}` is for methods whose mask has a batch of its own: use 'bip', or "
            "'bip-plus' with passes=2."
        )
    loss = setup.loss
    if upper_data is not None:
        _check_upper(upper_data, setup.accumulate)
    if isinstance(distill, nn.Module):
        distill = Distill(distill)
    if distill is not None:
        if not isinstance(distill, Distill):
            raise TypeError(
                "`distill` must be a torch.nn.Module, such as the `model` of what `train` "
                f"returned, or a `Distill`, got {type(distill).__name__}."
            )
        loss = _of_the_run(distill, loss)
        upper_loss = upper_loss or loss
    if isinstance(upper_loss, (Distill, Adversarial)):
        lower = setup.loss
        of_data = lower.loss if isinstance(lower, (Distill, Adversarial)) else lower
        upper_loss = _of_the_run(upper_loss, of_data)
    return replace(setup, loss=loss, upper_loss=upper_loss, upper_batches=upper_data)


def _of_the_run(objective: Distill | Adversarial, loss: Loss) -> Loss:
    """Return the objective on the run's loss, unless it has a loss of its own."""
    return replace(objective, loss=loss) if objective.loss is classification_loss else objective


def _check_upper(batches: object, accumulate: int) -> None:
    if not isinstance(batches, Iterable):
        raise TypeError(
            "`upper_data` must be something that yields batches, such as a DataLoader or the `val` "
            f"of a Dataset, got {type(batches).__name__}."
        )
    with forked_rng(batches):
        count = count_batches(batches, "upper_data")
    if count < accumulate:
        raise ValueError(f"`accumulate` {accumulate} is more than the {count} of `upper_data`.")


def _is_float(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    if isinstance(batch, dict):
        return logits_of(model(**{name: v for name, v in batch.items() if name != "labels"}))
    return logits_of(model(batch[0] if isinstance(batch, (tuple, list)) else batch))
