"""Prune in a loop on Lightning's Fabric, which needs no callback; save and resume the run.

pip install 'biprune[data,lightning]'
python examples/lightning_fabric.py
"""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy

import biprune


def main(epochs: int = 15, folder: str = "runs/fabric") -> biprune.Ticket:
    """Train and prune at once; return the ticket. Run again, it goes on where it was stopped."""
    data = biprune.load_data("digits", val_fraction=0.0, seed=0)
    fabric = Fabric(accelerator="auto", devices=1)
    net = biprune.create_model("resnet8", num_classes=10, in_channels=1, seed=0)
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=3e-3))
    pruner = biprune.attach(model, optimizer, sparsity=0.9, steps=len(data.train) * epochs)

    run = {"model": model, "optimizer": optimizer, "pruner": pruner, "epoch": 0}
    checkpoint = Path(folder) / "run.ckpt"
    if checkpoint.exists():
        fabric.load(checkpoint, run)
    for epoch in range(run["epoch"], epochs):
        torch.manual_seed(epoch)  # the batches of an epoch are the same after a resume
        for batch in data.train:
            images, labels = fabric.to_device(batch)
            fabric.backward(cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
        run["epoch"] = epoch + 1
        fabric.save(checkpoint, run)

    model.eval()
    images, labels = (torch.cat(each) for each in zip(*data.test, strict=True))
    with torch.no_grad():
        found = model(fabric.to_device(images)).argmax(1).cpu()
    ticket = pruner.ticket()
    accuracy = float((found == labels).float().mean())
    print(f"{accuracy:.2%} at a sparsity of {ticket.masks.sparsity:.2%}")
    return ticket


if __name__ == "__main__":
    main()
