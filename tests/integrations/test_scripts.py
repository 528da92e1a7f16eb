"""Loops that need no callback: on Accelerate, on Fabric, and in the manner of timm's `train.py`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

import biprune

Batches = list[tuple[Tensor, Tensor]]
Same = Callable[[nn.Module, nn.Module], bool]


@pytest.fixture
def fresh_state() -> Iterator[None]:
    """Accelerate keeps the precision of a process for good."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def plain(model: nn.Module, batches: Batches, every: int, bf16: bool) -> biprune.Pruner:
    """What Accelerate must equal: clipping, accumulation, a schedule."""
    optimizer = AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = CosineAnnealingLR(optimizer, 24)
    pruner = biprune.attach(model, optimizer, sparsity=0.8, steps=24 // every)
    for count, (images, labels) in enumerate(batches * 6, start=1):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits = model(images)
        (cross_entropy(logits.float(), labels) / every).backward()
        if count % every == 0:
            clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    return pruner


@pytest.mark.usefixtures("fresh_state")
@pytest.mark.parametrize(("every", "precision"), [(1, "no"), (2, "bf16")])
def test_accelerate_as_it_is(
    conv_net: nn.Module,
    batches: Batches,
    same_state: Same,
    tmp_path: Path,
    every: int,
    precision: str,
) -> None:
    """`save_state` saves the pruner too, once it is registered; the run resumes to the bit."""

    def start(net: nn.Module) -> tuple[Any, ...]:
        accelerator = Accelerator(
            cpu=True, mixed_precision=precision, gradient_accumulation_steps=every
        )
        optimizer = AdamW(net.parameters(), lr=3e-3, weight_decay=0.1)
        schedule = CosineAnnealingLR(optimizer, 24)
        loader = DataLoader(batches, batch_size=None)  # pyright: ignore[reportArgumentType]
        parts = accelerator.prepare(net, optimizer, loader, schedule)
        pruner = biprune.attach(parts[0], parts[1], sparsity=0.8, steps=24 // every)
        accelerator.register_for_checkpointing(pruner)
        return accelerator, pruner, *parts

    def train(parts: tuple[Any, ...], rounds: int) -> None:
        accelerator, _, model, optimizer, loader, schedule = parts
        for _ in range(rounds):
            for images, labels in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(cross_entropy(model(images), labels))
                    if accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()

    own, theirs, resumed = (copy.deepcopy(conv_net) for _ in range(3))
    pruner = plain(own, batches, every, precision == "bf16")
    first = start(theirs)
    train(first, 2)
    first[0].save_state(str(tmp_path / "run"))
    train(first, 4)
    again = start(resumed)
    again[0].load_state(str(tmp_path / "run"))
    train(again, 4)
    assert pruner.masks == first[1].masks == again[1].masks
    assert same_state(own, theirs)
    assert same_state(own, resumed)
    ticket = first[1].ticket()
    assert ticket.masks.kept == round(0.2 * 738)


@pytest.mark.parametrize("attached_to", ["wrapped", "own"])
def test_fabric_needs_no_callback(
    conv_net: nn.Module, batches: Batches, same_state: Same, tmp_path: Path, attached_to: str
) -> None:
    """Its optimizer is looked into, and it saves and loads a pruner like anything with a state."""

    def start(net: nn.Module) -> dict[str, Any]:
        fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
        model, optimizer = fabric.setup(net, AdamW(net.parameters(), lr=3e-3))
        pruned = model if attached_to == "wrapped" else net
        pruner = biprune.attach(pruned, optimizer, sparsity=0.8, steps=12)
        return {"fabric": fabric, "model": model, "optimizer": optimizer, "pruner": pruner}

    def train(parts: dict[str, Any], rounds: int) -> None:
        for images, labels in batches * rounds:
            parts["fabric"].backward(cross_entropy(parts["model"](images), labels))
            parts["optimizer"].step()
            parts["optimizer"].zero_grad()

    own, theirs, resumed = (copy.deepcopy(conv_net) for _ in range(3))
    optimizer = AdamW(own.parameters(), lr=3e-3)
    pruner = biprune.attach(own, optimizer, sparsity=0.8, steps=12)
    for images, labels in batches * 3:
        with torch.autocast("cpu", torch.bfloat16):
            logits = own(images)
        cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    parts = start(theirs)
    train(parts, 1)
    fabric = parts.pop("fabric")
    fabric.save(tmp_path / "run.ckpt", parts)
    train({"fabric": fabric, **parts}, 2)
    again = start(resumed)
    fabric = again.pop("fabric")
    fabric.load(tmp_path / "run.ckpt", again)
    train({"fabric": fabric, **again}, 2)
    assert same_state(own, theirs)
    assert same_state(own, resumed)
    assert pruner.masks == parts["pruner"].masks == again["pruner"].masks
    assert same_state(parts["pruner"].ticket().model, own)


class NativeScaler:
    """What timm's `train.py` calls `loss_scaler`: scale, backward, clip, step and update in one."""

    def __init__(self, scale: float) -> None:
        self._scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5)

    def __call__(
        self,
        loss: Tensor,
        optimizer: Optimizer,
        clip_grad: float | None = None,
        parameters: Any = None,
        need_update: bool = True,
    ) -> None:
        self._scaler.scale(loss).backward()
        if need_update:
            if clip_grad is not None:
                self._scaler.unscale_(optimizer)
                clip_grad_norm_(parameters, clip_grad)
            self._scaler.step(optimizer)
            self._scaler.update()


class Average:
    """What timm's `ModelEma` does: a copy of the model whose state lags behind."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.module = copy.deepcopy(model).eval()
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        values = model.state_dict()
        for name, mean in self.module.state_dict().items():
            mean.copy_(self.decay * mean + (1 - self.decay) * values[name])


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Those of timm's `create_optimizer`: no decay of biases and norms."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": decay},
    ]


@pytest.mark.parametrize("clip_grad", [None, 0.5])
def test_a_script_in_the_manner_of_timm(
    conv_net: nn.Module, batches: Batches, same_state: Same, clip_grad: float | None
) -> None:
    """Equal to a loop without a scale, which leaves the step out that overflows."""
    epochs, bad = 6, 2
    theirs = copy.deepcopy(conv_net)
    optimizer = AdamW(parameter_groups(theirs, 0.1), lr=3e-3)
    pruner = biprune.attach(theirs, optimizer, sparsity=0.8, steps=len(batches) * epochs)
    loss_scaler, model_ema = NativeScaler(2.0**10), Average(theirs, 0.9)
    for epoch in range(epochs):
        for update, (images, target) in enumerate(batches):
            loss = cross_entropy(theirs(images), target)
            if epoch == 0 and update == bad:
                loss = loss * torch.inf
            loss_scaler(loss, optimizer, clip_grad=clip_grad, parameters=theirs.parameters())
            model_ema.update(theirs)
            optimizer.zero_grad()
            for group in optimizer.param_groups:  # scheduler.step_update(num_updates)
                group["lr"] = 3e-3 * (1 - (epoch * len(batches) + update) / 48)

    own = copy.deepcopy(conv_net)
    optimizer = AdamW(parameter_groups(own, 0.1), lr=3e-3)
    other = biprune.attach(own, optimizer, sparsity=0.8, steps=len(batches) * epochs)
    for step, (images, target) in enumerate(batches * epochs):
        cross_entropy(own(images), target).backward()
        if step != bad:
            if clip_grad is not None:
                clip_grad_norm_(own.parameters(), clip_grad)
            optimizer.step()
        optimizer.zero_grad()
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / 48)

    assert pruner.step == other.step == len(batches) * epochs - 1
    assert same_state(own, theirs)
    assert pruner.masks == other.masks
    assert pruner.ticket().masks.kept == round(0.2 * 738)

    weights = [model_ema.module.get_parameter(name) for name in pruner.masks]
    assert sum(int(w.count_nonzero()) for w in weights) > pruner.masks.kept  # a mask that moved
    pruner.masks.apply_(model_ema.module)
    assert sum(int(w.count_nonzero()) for w in weights) == pruner.masks.kept
