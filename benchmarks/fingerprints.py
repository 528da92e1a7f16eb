"""Hashes of what every method computes, to see that a change of the code changes no result.

python benchmarks/fingerprints.py --out before.json
python benchmarks/fingerprints.py --against before.json

Every method prunes a small convolutional net and a small transformer in every structure, for two
epochs on one thread. The hashes are of the masks and of all weights, so they are the same only on
the same machine and the same version of torch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import biprune
from biprune.training.checkpoint import digest

STRUCTURES = ("weight", "filter", "channel", "group", "2:4")


class Attention(nn.Module):
    """One encoder layer over eight tokens, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.body = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.head = nn.Linear(16, 4)

    def forward(self, images: Tensor) -> Tensor:
        """Logits; a row of the image is a token."""
        return self.head(self.body(self.embed(images[:, 0])).mean(dim=1))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


def fingerprints() -> Iterator[tuple[str, str]]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(6, 8, 1, 8, 8, generator=generator)
    labels = torch.randint(4, (6, 8), generator=generator)
    batches = list(zip(images, labels, strict=True))
    for make in (convolutions, Attention):
        torch.manual_seed(0)
        dense = biprune.train(make(), batches, epochs=2, optimizer="sgd", lr=0.05)
        for method in biprune.METHODS:
            for structure in STRUCTURES:
                amount: dict[str, Any] = {} if structure == "2:4" else {"sparsity": 0.5}
                try:
                    ticket = biprune.prune(
                        dense,
                        batches,
                        method,
                        structure=structure,
                        epochs=2,
                        optimizer="sgd",
                        **amount,
                    )
                    found = digest([dict(ticket.masks), ticket.model.state_dict()])[:24]
                except ValueError as error:
                    found = f"{error}"[:60]
                yield f"{make.__name__} {method} {structure}", found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="write the hashes into this file")
    parser.add_argument("--against", type=Path, help="list what differs from the hashes in a file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = dict(fingerprints())
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    if options.against:
        before = json.loads(options.against.read_text())
        names = before.keys() | found.keys()
        different = sorted(name for name in names if before.get(name) != found.get(name))
        print(*different, f"{len(different)} of {len(names)} differ", sep="\n")


if __name__ == "__main__":
    main()
