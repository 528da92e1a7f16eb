"""What one iteration of each method costs, in dense SGD steps.

python benchmarks/step_cost.py --models resnet18 --batch 64

The dense step is a minimal loop in plain PyTorch, run before and after each of the others. An
iteration of BiP as published makes two passes on two batches, so 2.0 is its limit; one pass for
both levels has the limit 1.0, and so has `bip`, our default, which makes one.
"""

from __future__ import annotations

import argparse

import torch

import biprune
from biprune.heap import keep_freed_memory
from steps import STEPS, new_model, random_batches
from timing import bracketed, parser, report


def main() -> None:
    options = parser(__doc__)
    models = ["resnet20", "resnet56", "resnet18", "vgg16"]
    options.add_argument("--models", nargs="+", default=models, choices=sorted(biprune.MODELS))
    options.add_argument("--steps", nargs="+", default=list(STEPS)[1:], choices=list(STEPS)[1:])
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--rounds", type=int, default=15)
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the command line does; else chance decides who pays for fresh pages
    report([measure(name, options) for name in options.models], options)


def measure(name: str, options: argparse.Namespace) -> dict[str, object]:
    batches = random_batches(options.batch)
    candidates = {kind: STEPS[kind](new_model(name), batches) for kind in ["dense", *options.steps]}
    seconds, ratios = bracketed(candidates, "dense", options.rounds)
    return {"model": name, "dense, s": seconds, **ratios}


if __name__ == "__main__":
    main()
