"""Where the time of a BiP step goes, part by part.

python benchmarks/step_parts.py --model resnet18

The parts of a step of `bip-plus`, of which the pass itself, forward and backward, is what a dense
step needs too. Selecting less often than every step could save no more than the selection's share.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import biprune
from biprune.methods.attached import Rule
from biprune.methods.base import Target
from biprune.training.loop import Passes
from biprune.training.optimizers import SGD
from biprune.training.process import keep_freed_memory
from steps import default_step, new_model, random_batches
from timing import parser, report

PARTS: dict[str, tuple[type, str]] = {
    "forward and backward": (Passes, "__call__"),
    "SGD": (SGD, "_step_group"),
    "selection": (Target, "select"),
    "writing z": (Rule, "_write"),
}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--model", default="resnet18", choices=sorted(biprune.MODELS))
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--rounds", type=int, default=15)
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as the command line does; else chance decides who pays for fresh pages
    seconds: dict[str, list[float]] = defaultdict(list)
    for part, (owner, name) in PARTS.items():
        setattr(owner, name, timed(getattr(owner, name), seconds[part]))
    step = default_step(new_model(options.model), random_batches(options.batch))
    step = timed(step, seconds["whole step"])
    step()
    for values in seconds.values():
        values.clear()  # the first step allocates what all others use
    for _ in range(options.rounds):
        step()
    medians = {part: median(values) for part, values in seconds.items()}
    whole = medians.pop("whole step")
    medians["theta, scores and the rest"] = whole - sum(medians.values())
    rows = [
        {"part": part, "ms": 1000 * value, "% of the step": 100 * value / whole}
        for part, value in medians.items()
    ]
    report(rows, options)


def timed(function: Callable[..., Any], seconds: list[float]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        result = function(*args, **kwargs)
        seconds.append(time.perf_counter() - started)
        return result

    return run


if __name__ == "__main__":
    main()
