"""Prune a network while Lightning's Trainer trains it.

    pip install 'biprune[data,lightning]'
    python examples/lightning_trainer.py

Two lines are ours: the import, and the callback in the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import biprune
from biprune.integrations.lightning import PruningCallback


class Classifier(LightningModule):
    """A ResNet-8, as anybody's LightningModule has one."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.net = biprune.create_model("resnet8", num_classes=10, in_channels=1, seed=0)
        self.steps = steps

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Cross-entropy."""
        images, labels = batch
        return cross_entropy(self.net(images), labels)

    def test_step(self, batch: list[Tensor], batch_idx: int) -> None:
        """Accuracy."""
        images, labels = batch
        self.log("accuracy", (self.net(images).argmax(1) == labels).float().mean())

    def configure_optimizers(self) -> Any:
        """AdamW, whose rate rises and falls."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loader(batches: Iterable[tuple[Tensor, Tensor]], *, shuffle: bool) -> DataLoader:
    """The images in a loader of Lightning's liking."""
    images, labels = (torch.cat(each) for each in zip(*batches, strict=True))
    return DataLoader(TensorDataset(images, labels), batch_size=64, shuffle=shuffle)


def main(epochs: int = 15, folder: str = "runs/lightning") -> biprune.Ticket:
    """Train and prune at once; return the ticket."""
    data = biprune.load_data("digits", val_fraction=0.0, seed=0)
    torch.manual_seed(0)
    train = loader(data.train, shuffle=True)
    pruning = PruningCallback(sparsity=0.9)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="auto",
        logger=False,
        log_every_n_steps=10,
        default_root_dir=folder,
        callbacks=[pruning],
    )
    model = Classifier(steps=len(train) * epochs)
    trainer.fit(model, train)  # ckpt_path=... goes on bit for bit
    trainer.test(model, loader(data.test, shuffle=False), verbose=False)
    ticket = pruning.ticket()
    accuracy = float(trainer.callback_metrics["accuracy"])
    print(f"{accuracy:.2%} at a sparsity of {ticket.masks.sparsity:.2%}")
    return ticket


if __name__ == "__main__":
    main()
