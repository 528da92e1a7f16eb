"""Prune a transformer as it trains: AdamW, warm-up, clipping, bfloat16, micro-batches.

    python examples/transformer.py

A character model of half a million weights reads the sources of Python's `email` package, and loses
80 % of the weights in its blocks meanwhile. Embeddings and head stay dense.
"""

from __future__ import annotations

import email
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import biprune

CONTEXT, WIDTH = 64, 128


class Reader(nn.Module):
    """What comes next, for each place of a text of bytes."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 512, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        """Logits of the next byte."""
        hidden = self.bytes(text) + self.places.weight[: text.shape[1]]
        causal = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        return self.head(self.blocks(hidden, mask=causal, is_causal=True))


def loss_of(model: nn.Module, text: Tensor) -> Tensor:
    """In nats a byte, over a batch of pieces drawn from the text."""
    starts = torch.randint(len(text) - CONTEXT - 1, (16,))
    pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(pieces[:, :-1])
    return cross_entropy(logits.float().flatten(0, 1), pieces[:, 1:].flatten())


def main(steps: int = 300, micro_batches: int = 2) -> None:
    """Train, prune, and say what the loss has become."""
    torch.manual_seed(0)
    sources = sorted(Path(email.__file__).parent.glob("*.py"))
    text = torch.tensor(list(b"".join(source.read_bytes() for source in sources)))
    train, held_out = text[: -len(text) // 10], text[-len(text) // 10 :]
    model = Reader()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.1)

    pruner = biprune.attach(model, optimizer, sparsity=0.8, steps=steps, include="blocks.*")

    for step in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_batches):
            (loss_of(model, train) / micro_batches).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % max(1, steps // 5) == 0:
            with torch.no_grad():
                loss = torch.stack([loss_of(model, held_out) for _ in range(10)]).mean()
            print(f"step {step + 1:3}: sparsity {pruner.sparsity:.3f}, loss {loss:.3f}")
    print(f"{pruner.ticket().masks.kept} of {pruner.masks.total} weights in the blocks are left.")


if __name__ == "__main__":
    main()
