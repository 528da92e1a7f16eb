"""Prune in a loop on Accelerate: prepare, then attach.

pip install 'biprune[data,hf]'
accelerate launch examples/accelerate_loop.py
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import biprune


def main(epochs: int = 15) -> biprune.Ticket:
    """Train and prune at once; return the ticket."""
    data = biprune.load_data("digits", val_fraction=0.0, seed=0)
    torch.manual_seed(0)
    images, labels = (torch.cat(each) for each in zip(*data.train, strict=True))
    loader = DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True)
    model = biprune.create_model("resnet8", num_classes=10, in_channels=1, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    steps = -(-len(loader) // 2) * epochs  # of the optimizer; an epoch's last group may be short
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    accelerator = Accelerator(gradient_accumulation_steps=2)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    pruner = biprune.attach(model, optimizer, sparsity=0.9, steps=steps)
    accelerator.register_for_checkpointing(pruner)  # for accelerator.save_state and load_state

    for _ in range(epochs):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(cross_entropy(model(inputs), targets))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

    ticket = pruner.ticket()
    images, labels = (torch.cat(each) for each in zip(*data.test, strict=True))
    with torch.no_grad():
        found = ticket.model(images.to(accelerator.device)).argmax(1).cpu()
    accuracy = float((found == labels).float().mean())
    accelerator.print(f"{accuracy:.2%} at a sparsity of {ticket.masks.sparsity:.2%}")
    return ticket


if __name__ == "__main__":
    main()
