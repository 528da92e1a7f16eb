"""What one BiP iteration costs, in dense SGD steps: `python benchmarks/step_cost.py --help`.

The dense step is a minimal loop in plain PyTorch with the same memory format and fused SGD; the BiP
iteration is the one `biprune.prune` runs, two passes on two batches. 2.0 is the limit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from timing import environment, interleaved_medians, report
from torch.nn.functional import cross_entropy

import biprune
from biprune.batches import classification_loss
from biprune.loop import Passes, Setup
from biprune.methods.base import Start, Target
from biprune.methods.bip import BiPAlgorithm
from biprune.structure import get_structure
from biprune.training import copy_model

SPARSITY = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="resnet18", choices=sorted(biprune.MODELS))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    model = copy_model(biprune.create_model(options.model), channels_last=True).train()
    batches = [
        (torch.randn(options.batch, 3, 32, 32), torch.randint(10, (options.batch,)))
        for _ in range(2)
    ]
    candidates = {"dense": dense_step(model, batches[0]), "bip": bip_step(model, batches)}
    medians = interleaved_medians(candidates, options.rounds)
    report(
        {
            "model": options.model,
            "batch": options.batch,
            "rounds": options.rounds,
            "dense_step_s": medians["dense"],
            "bip_step_s": medians["bip"],
            "ratio": medians["bip"] / medians["dense"],
            **environment(),
        },
        options.json,
    )


def dense_step(model, batch):
    model = copy_model(model, channels_last=True)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True
    )
    inputs, labels = batch

    def step() -> None:
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def bip_step(model, batches):
    model = copy_model(model, channels_last=True)
    setup = Setup(batches, classification_loss)
    target = Target(SPARSITY, get_structure("weight"))
    algorithm = BiPAlgorithm(biprune.BiP(), Start(model), setup, target)
    passes = Passes(model, setup)
    list(algorithm.groups(batches, len(batches)))  # tells the algorithm the length of an epoch
    return lambda: algorithm.step(passes, batches, done=0.0)


if __name__ == "__main__":
    main()
