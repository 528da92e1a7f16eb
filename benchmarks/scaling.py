"""What a run costs as the model grows, and as the sparsity does.

python benchmarks/scaling.py

Two tables, of whole runs on the digits, with BiP as published. With the width of a ResNet-8 the
number of weights grows; a BiP run is set against dense training with as many passes. With the
sparsity IMP's rounds grow, each a retraining, and BiP's cost does not: both are set against BiP at
the lowest sparsity.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import biprune
from timing import interleaved, medians, parser, ratio, report

SPARSITIES = [0.5, 0.74, 0.87, 0.95, 0.99]
WIDTHS = [8, 16, 32, 64]
METHODS = {"bip": biprune.BiP(), "imp": biprune.IMP()}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--epochs", type=int, default=2, help="of BiP, and of a round of IMP")
    options.add_argument("--rounds", type=int, default=3)
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    data = biprune.load_data("digits")
    by_size = [against_size(data, width, options) for width in WIDTHS]
    report([*against_sparsity(data, options)], options, before=by_size)


def against_size(data: biprune.Dataset, width: int, options: Any) -> dict[str, object]:
    model = biprune.create_model("resnet8", in_channels=data.in_channels, width=width)
    epochs = options.epochs
    candidates = {
        "dense": partial(biprune.train, model, data, epochs=2 * epochs),
        "bip": partial(biprune.prune, model, data, METHODS["bip"], sparsity=0.9, epochs=epochs),
    }
    seconds = interleaved(candidates, options.rounds)
    ticket = candidates["bip"]()
    return {
        "width": width,
        "weights": ticket.masks.total,
        "dense, s": medians(seconds)["dense"],
        "bip, s": medians(seconds)["bip"],
        "bip / dense": ratio(seconds, "bip", "dense"),
    }


def against_sparsity(data: biprune.Dataset, options: Any) -> list[dict[str, object]]:
    model = biprune.create_model("resnet8", in_channels=data.in_channels)
    dense = biprune.train(model, data, epochs=1)
    tickets: dict[tuple[str, float], biprune.Ticket] = {}

    def run(name: str, sparsity: float) -> None:
        method = METHODS[name]
        ticket = biprune.prune(dense, data, method, sparsity=sparsity, epochs=options.epochs)
        tickets[name, sparsity] = ticket

    cells = [(method, sparsity) for sparsity in SPARSITIES for method in METHODS]
    candidates = {f"{m} {s}": partial(run, m, s) for m, s in cells}
    seconds = interleaved(candidates, options.rounds)
    unit = f"bip {SPARSITIES[0]}"
    return [
        {
            "sparsity": f"{100 * sparsity:g} %",
            "bip, s": medians(seconds)[f"bip {sparsity}"],
            "bip": ratio(seconds, f"bip {sparsity}", unit),
            "imp, s": medians(seconds)[f"imp {sparsity}"],
            "imp": ratio(seconds, f"imp {sparsity}", unit),
            "bip passes": tickets["bip", sparsity].cost.backward_passes,
            "imp passes": tickets["imp", sparsity].cost.backward_passes,
        }
        for sparsity in SPARSITIES
    ]


if __name__ == "__main__":
    main()
