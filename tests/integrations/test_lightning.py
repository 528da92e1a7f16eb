"""Pruning under Lightning's Trainer: as in a loop of one's own, resumed to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

import biprune
from biprune.integrations.lightning import PruningCallback

pytestmark = [
    # Lightning 2.6 asks torch 2.13 about trees in a way that torch is to drop.
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    # Said where there are more cores than workers.
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
]
Batches = list[tuple[Tensor, Tensor]]
Same = Callable[[nn.Module, nn.Module], bool]
EPOCHS = 3


class Module(LightningModule):
    """The usual one: the Trainer steps the optimizer by a closure."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self.loss(batch)

    def configure_optimizers(self) -> Any:
        optimizer = AdamW(self.parameters(), lr=3e-3, weight_decay=0.1)
        schedule = {"scheduler": CosineAnnealingLR(optimizer, 40), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Manual(Module):
    """Steps by itself, with clipping of its own."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.automatic_optimization = False

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        schedule: Any = self.lr_schedulers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        self.clip_gradients(optimizer, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        optimizer.step()
        schedule.step()


def trainer(folder: Path, *callbacks: Any, **how: Any) -> Trainer:
    usual: dict[str, Any] = {
        "max_epochs": EPOCHS,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "log_every_n_steps": 3,
    }
    return Trainer(callbacks=list(callbacks), **usual | how)


def in_turn(batches: Batches) -> DataLoader[Any]:
    """Lightning takes a list for several loaders."""
    return DataLoader(batches, batch_size=None)  # pyright: ignore[reportArgumentType]


def own_loop(module: Module, batches: Batches, dtype: Any = None, every: int = 1) -> biprune.Pruner:
    """The same without a trainer."""
    configured = module.configure_optimizers()
    optimizer, schedule = configured["optimizer"], configured["lr_scheduler"]["scheduler"]
    pruner = biprune.attach(module, optimizer, sparsity=0.8, steps=EPOCHS * len(batches) // every)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
    for count, batch in enumerate(batches * EPOCHS, start=1):
        with torch.autocast("cpu", dtype, enabled=dtype is not None, cache_enabled=False):
            loss = module.loss(batch)
        scaler.scale(loss / every).backward()
        if count % every == 0:
            scaler.unscale_(optimizer)
            clip_grad_norm_(module.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
            optimizer.zero_grad()
    return pruner


@pytest.mark.parametrize(
    ("kind", "dtype", "how"),
    [
        (Module, None, {}),
        (Module, None, {"accumulate_grad_batches": 2}),
        (Module, torch.bfloat16, {"precision": "bf16-mixed"}),
        (Module, torch.float16, {}),
        (Manual, None, {}),
    ],
    ids=["closure", "accumulated", "bf16-mixed", "16-mixed", "manual"],
)
def test_a_run_is_that_of_a_loop_of_ones_own(
    conv_net: nn.Module,
    batches: Batches,
    same_state: Same,
    tmp_path: Path,
    kind: type[Module],
    dtype: Any,
    how: dict[str, Any],
) -> None:
    """Lightning steps with a closure that has yet to run, or has run, or does nothing."""
    own, theirs = kind(conv_net), kind(copy.deepcopy(conv_net))
    if dtype is torch.float16:  # by name, it is refused on a CPU
        how = {"plugins": [MixedPrecision("16-mixed", "cpu")]}
    if kind is Module:
        how = {"gradient_clip_val": 0.5, **how}
    pruning = PruningCallback(sparsity=0.8)
    trainer(tmp_path, pruning, **how).fit(theirs, in_turn(batches))
    pruner = own_loop(own, batches, dtype, how.get("accumulate_grad_batches", 1))
    assert pruner.step == pruning.pruner.step > 5
    assert same_state(own, theirs)
    assert pruner.masks == pruning.pruner.masks
    ticket = pruning.ticket()
    assert ticket.masks.kept == round(0.2 * 738)
    images = batches[0][0]
    with torch.no_grad():
        assert torch.equal(ticket.model(images), theirs.eval()(images))
    assert ticket.model is not theirs
    assert ticket.model._trainer is None


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* is not empty")
def test_a_resumed_run_ends_with_the_same_bits(
    conv_net: nn.Module, batches: Batches, same_state: Same, tmp_path: Path
) -> None:
    def run(path: Path | None = None) -> tuple[Module, PruningCallback]:
        pruning = PruningCallback(sparsity=0.8)
        saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        module = Module(copy.deepcopy(conv_net))
        run = trainer(tmp_path, pruning, saving, enable_checkpointing=True)
        run.fit(module, in_turn(batches), ckpt_path=path)
        return module, pruning

    whole, pruning = run()
    checkpoint = tmp_path / "epoch=0.ckpt"
    saved = torch.load(checkpoint, weights_only=True)["callbacks"]["PruningCallback"]
    assert saved["step"] == 4
    resumed, again = run(checkpoint)
    assert same_state(whole, resumed)
    assert pruning.pruner.masks == again.pruner.masks
    assert pruning.pruner.history == again.pruner.history
    assert again.ticket().masks.kept == round(0.2 * 738)


class Adversaries(Module):
    """Two nets, each with an optimizer of its own, which step in turn."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.other = copy.deepcopy(net)
        self.automatic_optimization = False

    def losses(self, batch: tuple[Tensor, Tensor]) -> list[Tensor]:
        images, labels = batch
        logits = self.net(images)
        return [
            cross_entropy(logits, labels),
            cross_entropy(self.other(images) - logits.detach(), labels),
        ]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        optimizers: Any = self.optimizers()
        for optimizer, loss in zip(optimizers, self.losses(batch), strict=True):
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> list[Optimizer]:
        return [AdamW(self.net.parameters()), SGD(self.other.parameters(), lr=0.1, momentum=0.9)]


def test_several_optimizers_make_one_step(
    conv_net: nn.Module, batches: Batches, same_state: Same, tmp_path: Path
) -> None:
    own, theirs = Adversaries(conv_net), Adversaries(copy.deepcopy(conv_net))
    pruning = PruningCallback(sparsity=0.8)
    trainer(tmp_path, pruning).fit(theirs, in_turn(batches))
    optimizers = own.configure_optimizers()
    pruner = biprune.attach(own, optimizers, sparsity=0.8, steps=12)
    for batch in batches * EPOCHS:
        for optimizer, loss in zip(optimizers, own.losses(batch), strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert pruner.step == pruning.pruner.step == 12
    assert same_state(own, theirs)
    assert pruning.ticket().masks.kept == round(0.2 * 2 * 738)


def test_the_logger_learns_how_the_mask_moved(
    conv_net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    """Every third step of 12, each of two batches."""
    pruning = PruningCallback(sparsity=0.8)
    masks = [{"": torch.ones(738, dtype=torch.bool)}]

    class Recorded(Module):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx % 2:
                masks.append(dict(pruning.pruner.masks))

    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    run = trainer(tmp_path, pruning, logger=logger, accumulate_grad_batches=2)
    run.fit(Recorded(conv_net), in_turn(batches * 2))
    rows = (Path(logger.log_dir) / "metrics.csv").read_text().split()
    names = rows[0].split(",")
    logged = [dict(zip(names, map(float, row.split(",")), strict=True)) for row in rows[1:]]
    assert [row["step"] for row in logged] == [2, 5, 8, 11]
    flat = [torch.cat([mask.flatten() for mask in each.values()]) for each in masks]
    for row in logged:
        now, then = flat[int(row["step"]) + 1], flat[int(row["step"]) - 2]
        moved = {
            "sparsity": 1 - int(now.sum()) / 738,
            "flips": int((now != then).sum()) / 738,
            "overlap": int((now & then).sum()) / int((now | then).sum()),
        }
        assert {name: row[name] for name in moved} == pytest.approx(moved, abs=1e-6)
    assert logged[0]["flips"] > 0.3
    assert run.callback_metrics["sparsity"] == pytest.approx(1 - 148 / 738)


def test_a_second_fit_trains_on_under_the_mask(
    conv_net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    pruning = PruningCallback(sparsity=0.8)
    module = Module(conv_net)
    trainer(tmp_path, pruning).fit(module, in_turn(batches))
    first = pruning.ticket()
    trainer(tmp_path, pruning).fit(module, in_turn(batches))
    second = pruning.ticket()
    assert second.masks == first.masks
    name = "net.conv2.weight"
    assert not torch.equal(first.model.get_parameter(name), second.model.get_parameter(name))
    biprune.hold(module, AdamW(module.parameters()), first.masks)  # nothing is attached any more


def test_a_checkpoint_without_a_pruner_is_refused(
    conv_net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    dense = trainer(tmp_path, max_epochs=1)
    dense.fit(Module(conv_net), in_turn(batches))
    dense.save_checkpoint(tmp_path / "dense.ckpt")
    run = trainer(tmp_path, PruningCallback(sparsity=0.8))
    with pytest.raises(ValueError, match=r"no pruner in the checkpoint .* without `ckpt_path`"):
        run.fit(Module(conv_net), in_turn(batches), ckpt_path=str(tmp_path / "dense.ckpt"))


def test_without_an_end_steps_are_asked_for(
    conv_net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    class Stopping(Module):
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
            self.trainer.should_stop = self.global_step == 10
            return None

    def run(**settings: Any) -> PruningCallback:
        pruning = PruningCallback(sparsity=0.8, **settings)
        trainer(tmp_path, pruning, max_epochs=-1).fit(
            Stopping(copy.deepcopy(conv_net)), in_turn(batches)
        )
        return pruning

    with pytest.raises(ValueError, match="give `steps` to the callback"):
        run()
    assert run(steps=10).ticket().masks.kept == round(0.2 * 738)
