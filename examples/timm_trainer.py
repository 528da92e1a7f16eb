"""Prune in a script in the manner of timm's `train.py`: one line before the loop, one behind.

    pip install 'biprune[data]'
    python examples/timm_trainer.py

Decay for some parameters only, warm-up, clipping, a moving average of the weights.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

import biprune


def main(epochs: int = 15) -> biprune.Ticket:
    """Train and prune at once; return the ticket."""
    data = biprune.load_data("digits", val_fraction=0.0, seed=0)
    torch.manual_seed(0)
    model = biprune.create_model("resnet8", num_classes=10, in_channels=1, seed=0)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.05},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    steps = len(data.train) * epochs
    warm_up = max(1, steps // 10)

    def rate(step: int) -> float:
        after = max(0.0, (step - warm_up) / (steps - warm_up))
        return min(1.0, (step + 1) / warm_up) * 0.5 * (1 + math.cos(math.pi * after))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    model_ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
    pruner = biprune.attach(model, optimizer, sparsity=0.9, steps=steps)  # ours

    for _ in range(epochs):
        for inputs, target in data.train:
            cross_entropy(model(inputs), target).backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            model_ema.update_parameters(model)

    ticket = pruner.ticket()
    ticket.masks.apply_(model_ema)  # ours: an average of a mask that moved is dense
    update_bn(data.train, model_ema)
    images, labels = (torch.cat(each) for each in zip(*data.test, strict=True))
    for name, net in (("last", ticket.model), ("average", model_ema.eval())):
        with torch.no_grad():
            accuracy = float((net(images).argmax(1) == labels).float().mean())
        print(f"{name}: {accuracy:.2%} at a sparsity of {ticket.masks.sparsity:.2%}")
    return ticket


if __name__ == "__main__":
    main()
