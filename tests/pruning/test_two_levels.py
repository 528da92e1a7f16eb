"""Two levels with objectives of their own, against loops written out."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import Batches, Loss, Same, distilled, loss_of
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

import biprune

KINDS: dict[str, dict[str, Any]] = {"bip": {}, "bip-plus": {"passes": 2}}
EPSILON = 0.3


@pytest.fixture
def others() -> Batches:
    """Six batches of another distribution."""
    drawn = torch.Generator().manual_seed(5)
    images = torch.randn(6, 8, 1, 8, 8, generator=drawn)
    return list(zip(images, torch.randint(3, (6, 8), generator=drawn), strict=True))


@pytest.fixture
def teacher(conv_net: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    return type(conv_net)(width=5)


def smoothed(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.2)


def attacked_by_hand(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Two ascents of 0.2 within 0.3, in eval mode; then the loss in training mode."""
    images, labels = batch
    model.eval()
    delta = torch.zeros_like(images)
    for _ in range(2):
        delta.requires_grad_()
        (slope,) = torch.autograd.grad(loss_of(model, (images + delta, labels)), delta)
        delta = (delta.detach() + 0.2 * slope.sign()).clamp(-EPSILON, EPSILON)
    model.train()
    return loss_of(model, (images + delta, labels))


def two_levels(
    model: nn.Module, method: str, lower: Loss, upper: Loss, pairs: list[tuple[Any, Any]]
) -> biprune.Pruner:
    """A loop of one's own, in which every second step is the upper level's."""
    optimizer = SGD(model.train().parameters(), lr=0.05)
    how: dict[str, Any] = {"sparsity": 0.7, "method": method, **KINDS[method]}
    pruner = biprune.attach(model, optimizer, steps=2 * len(pairs), **how)
    for batch, above in pairs:
        for loss, each in ((lower, batch), (upper, above)):
            optimizer.zero_grad()
            loss(model, each).backward()
            optimizer.step()
    return pruner


@pytest.mark.parametrize("method", KINDS)
@pytest.mark.parametrize("objective", ["data", "loss", "both", "teacher", "adversary"])
def test_a_run_is_the_loop_written_out(
    conv_net: nn.Module,
    teacher: nn.Module,
    batches: Batches,
    others: Batches,
    method: str,
    objective: str,
) -> None:
    """Over two epochs; those of `others` come one after the other, from epoch to epoch."""
    adversary = biprune.Adversarial(EPSILON, steps=2, step_size=0.2)
    taught = distilled(teacher, 2.0, 0.5)
    a, b, c, d = batches
    levels = [(a, b), (c, d), (b, a), (d, c)] * 2
    above = list(zip(batches * 2, [*others, *others[:2]], strict=True))
    given: dict[str, Any]
    given, lower, upper, pairs = {
        "data": ({"upper_data": others}, loss_of, loss_of, above),
        "loss": ({"upper_loss": smoothed}, loss_of, smoothed, levels),
        "both": ({"upper_data": others, "upper_loss": smoothed}, loss_of, smoothed, above),
        "teacher": ({"distill": teacher}, taught, taught, levels),
        "adversary": ({"upper_loss": adversary}, loss_of, attacked_by_hand, levels),
    }[objective]
    own = copy.deepcopy(conv_net)
    pruner = two_levels(own, method, lower, upper, pairs)
    how = {"sparsity": 0.7, "epochs": 2, "lr_schedule": "constant", **KINDS[method]}
    ticket = biprune.prune(
        conv_net, batches, method, optimizer=lambda groups: SGD(groups, lr=0.05), **how, **given
    )
    assert ticket.masks.overlap(pruner.masks) > 0.99
    for name, value in own.state_dict().items():
        torch.testing.assert_close(ticket.model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    plain = biprune.prune(
        conv_net, batches, method, optimizer=lambda groups: SGD(groups, lr=0.05), **how
    )
    assert plain.masks != ticket.masks


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_above_is_seeded_with_the_run_and_put_back(
    conv_net: nn.Module, batches: Batches, others: Batches, same_state: Same, workers: int
) -> None:
    images, labels = (torch.cat(parts) for parts in zip(*others, strict=True))
    drawn = torch.Generator().manual_seed(7)
    loader = DataLoader(
        TensorDataset(images, labels),
        batch_size=8,
        shuffle=True,
        generator=drawn,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    before = drawn.get_state()
    one, again = (
        biprune.prune(conv_net, batches, "bip", sparsity=0.5, epochs=2, upper_data=loader)
        for _ in range(2)
    )
    assert torch.equal(drawn.get_state(), before)
    assert same_state(one.model, again.model)


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("method", KINDS)
def test_a_run_that_was_stopped_ends_with_the_same_bits(
    conv_net: nn.Module,
    batches: Batches,
    others: Batches,
    same_state: Same,
    tmp_path: Path,
    method: str,
) -> None:
    def stop(event: biprune.Event) -> None:
        if event.epoch == 2:
            raise StoppedError

    how: dict[str, Any] = {"sparsity": 0.7, "epochs": 3, "upper_data": others, **KINDS[method]}
    whole = biprune.prune(conv_net, batches, method, **how)
    with pytest.raises(StoppedError):
        biprune.prune(conv_net, batches, method, checkpoint=tmp_path, progress=stop, **how)
    rest = biprune.prune(conv_net, batches, method, checkpoint=tmp_path, **how)
    assert whole.masks == rest.masks
    assert same_state(whole.model, rest.model)


def test_an_objective_is_of_the_loss_of_the_run(conv_net: nn.Module, batches: Batches) -> None:
    """Unless it says another; also where the level below has an objective of its own."""
    passes: list[bool] = []

    def own(model: nn.Module, batch: Any) -> Tensor:
        passes.append(model.training)
        return smoothed(model, batch)

    adversary = biprune.Adversarial(EPSILON, steps=3)
    for below, count in ((own, 4 + 4 * 4), (biprune.Adversarial(EPSILON, 2, loss=own), 4 * 7)):
        passes.clear()
        how: dict[str, Any] = {"sparsity": 0.5, "epochs": 1, "upper_loss": adversary}
        biprune.prune(conv_net, batches, "bip", loss=below, **how)
        assert len(passes) == count
        assert sum(passes) == 8  # in training mode, one for each step


def test_accumulation_is_of_both_levels(
    conv_net: nn.Module, batches: Batches, others: Batches
) -> None:
    seen: list[float] = []

    def above(model: nn.Module, batch: Any) -> Tensor:
        seen.append(float(batch[0].sum()))
        return loss_of(model, batch)

    how: dict[str, Any] = {"sparsity": 0.5, "accumulate": 2, "upper_data": others}
    biprune.prune(conv_net, batches, "bip", epochs=1, upper_loss=above, **how)
    assert seen == [float(images.sum()) for images, _ in others[:4]]


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"method": "gmp", "upper_data": []}, ValueError, "`upper_data` is for methods whose mask"),
        ({"method": "bip-plus", "upper_loss": loss_of}, ValueError, "'bip-plus' with passes=2"),
        ({"upper_data": []}, ValueError, "`upper_data` yields no batches"),
        ({"upper_data": iter([1])}, ValueError, "`upper_data` is a one-shot iterator"),
        ({"upper_data": 5}, TypeError, "`upper_data` must be something that yields batches"),
        (
            {"upper_data": [1], "accumulate": 2},
            ValueError,
            "`accumulate` 2 is more than the 1 of `upper_data`",
        ),
        ({"upper_loss": "pgd"}, TypeError, "`upper_loss` must be a function, got str"),
        ({"distill": "resnet"}, TypeError, "`distill` must be a torch.nn.Module, .* got str"),
        ({"distill": nn.Linear(64, 7)}, ValueError, r"logits are of shape \(8, 7\), the model's"),
    ],
)
def test_objectives_that_cannot_be_are_refused(
    batches: Batches, given: dict[str, Any], error: Any, words: str
) -> None:
    flat = [(images.flatten(1), labels) for images, labels in batches]
    with pytest.raises(error, match=words):
        biprune.prune(
            nn.Linear(64, 3), flat, **{"method": "bip", "sparsity": 0.5, "epochs": 1} | given
        )


def test_the_page_on_objectives(conv_net: nn.Module, batches: Batches, others: Batches) -> None:
    text = (Path(__file__).parents[2] / "docs/objectives.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {"dense": conv_net, "batches": batches, "noisy": others, "few_clean": batches[:1]}
    exec(compile(code.replace(": 30", ": 1"), "objectives", "exec"), names)
    for name in ("clean", "robust", "taught"):
        assert names[name].masks.kept == round(0.1 * 738)  # pyright: ignore
