"""What one iteration of each method costs, in dense SGD steps.

python benchmarks/step_cost.py --models resnet18 --batch 64

The dense step is a minimal loop in plain PyTorch. An iteration of BiP as published makes two passes
on two batches, so 2.0 is its limit; one pass for both levels has the limit 1.0, and so has BiP by
default, whose masks follow the weights.
"""

from __future__ import annotations

import torch

import biprune
from steps import STEPS, new_model, random_batches
from timing import interleaved, medians, parser, ratio, report


def main() -> None:
    options = parser(__doc__)
    models = ["resnet20", "resnet56", "resnet18", "vgg16"]
    options.add_argument("--models", nargs="+", default=models, choices=sorted(biprune.MODELS))
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--rounds", type=int, default=15)
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    report([measure(name, options.batch, options.rounds) for name in options.models], options)


def measure(name: str, batch: int, rounds: int) -> dict[str, object]:
    batches = random_batches(batch)
    candidates = {kind: make(new_model(name), batches) for kind, make in STEPS.items()}
    seconds = interleaved(candidates, rounds)
    ratios = {kind: ratio(seconds, kind, "dense") for kind in list(STEPS)[1:]}
    return {"model": name, "dense, s": medians(seconds)["dense"], **ratios}


if __name__ == "__main__":
    main()
