"""Prune in a training loop of one's own: one line before it, one behind it.

    python examples/own_loop.py

A small network learns scikit-learn's digits and loses 90 % of its weights meanwhile. Then the
ticket is fine-tuned, which leaves its zeros alone.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import biprune


def accuracy(model: nn.Module, data: biprune.Dataset) -> float:
    """On the test images, in percent."""
    model.eval()
    hits = [(model(images).argmax(dim=1) == labels).float() for images, labels in data.test]
    return 100 * torch.cat(hits).mean().item()


def main(epochs: int = 20) -> None:
    """Train, prune, fine-tune."""
    data = biprune.load_data("digits")
    model = biprune.create_model("resnet8", width=8, in_channels=1, num_classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    steps = epochs * len(data.train)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    pruner = biprune.attach(model, optimizer, sparsity=0.9, steps=steps)

    for epoch in range(epochs):
        model.train()
        for images, labels in data.train:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1:2}: sparsity {pruner.sparsity:.3f}")

    ticket = pruner.ticket()
    pruner.detach()
    print(f"{ticket.masks.kept} weights are left: {accuracy(ticket.model, data):.2f} %")

    tuned = torch.optim.AdamW(ticket.model.parameters(), lr=1e-3)
    holder = biprune.hold(ticket.model, tuned, ticket.masks)
    ticket.model.train()
    for images, labels in data.train:
        tuned.zero_grad()
        cross_entropy(ticket.model(images), labels).backward()
        tuned.step()
    holder.detach()
    nonzero = sum(int(ticket.model.get_parameter(n).count_nonzero()) for n in ticket.masks)
    print(f"Fine-tuned, {nonzero} of them not zero: {accuracy(ticket.model, data):.2f} %")


if __name__ == "__main__":
    main()
