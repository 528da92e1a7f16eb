"""What one iteration of each method costs, in dense SGD steps.

python benchmarks/step_cost.py --models resnet18 --batch 64

The dense step is a minimal loop in plain PyTorch, run before and after each of the others. An
iteration of `bip` makes two passes on two batches, so 2.0 is its limit; `bip-plus` makes one pass
for both levels and has the limit 1.0. "attach" and "hold" are that dense loop with a pruner or a
holder attached; of a transformer by AdamW, too.
"""

from __future__ import annotations

import argparse

import torch

import biprune
from biprune.training.process import keep_freed_memory
from steps import (
    STEPS,
    Transformer,
    adamw,
    attached_step,
    held_step,
    loop_step,
    new_model,
    random_batches,
    random_tokens,
)
from timing import bracketed, parser, report


def main() -> None:
    options = parser(__doc__)
    models = ["resnet20", "resnet56", "resnet18", "vgg16"]
    options.add_argument("--models", nargs="+", default=models, choices=sorted(biprune.MODELS))
    options.add_argument("--steps", nargs="+", default=list(STEPS)[1:], choices=list(STEPS)[1:])
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--width", type=int, default=384, help="of the transformer")
    options.add_argument("--rounds", type=int, default=15)
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the command line does; else chance decides who pays for fresh pages
    models = [measure(name, options) for name in options.models]
    report(models, options, before=[measure_transformer(options)])


def measure(name: str, options: argparse.Namespace) -> dict[str, object]:
    batches = random_batches(options.batch)
    candidates = {kind: STEPS[kind](new_model(name), batches) for kind in ["dense", *options.steps]}
    seconds, ratios = bracketed(candidates, "dense", options.rounds)
    return {"model": name, "dense, s": seconds, **ratios}


def measure_transformer(options: argparse.Namespace) -> dict[str, object]:
    batches, candidates = random_tokens(options.batch), {}
    for kind, make in {"dense": loop_step, "attach": attached_step, "hold": held_step}.items():
        torch.manual_seed(0)
        model = Transformer(options.width)
        candidates[kind] = make(model, batches, adamw(model))
    seconds, ratios = bracketed(candidates, "dense", options.rounds)
    return {"model": "transformer", "dense, s": seconds, **ratios}


if __name__ == "__main__":
    main()
