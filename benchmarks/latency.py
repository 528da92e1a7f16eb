"""Latency of a pruned network: dense, with zeros, physically smaller, and in onnxruntime.

python benchmarks/latency.py --model resnet18 --sparsities 0.5 0.7

Coupled groups are pruned by magnitude, the same fraction of each, without training: latency depends
on shapes and not on values. All variants of one sparsity take turns in one run. "speed-up" is the
median over the rounds of the dense model's time over the variant's within a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import biprune
from biprune.methods.base import magnitudes
from biprune.pruning.request import Request
from biprune.runtime.profile import profile, ticket_variants
from biprune.structured.grouping import Coupling
from biprune.structured.shrink import shrink
from biprune.training.copying import copy_model
from timing import Row, parser, report


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--model", default="resnet18", choices=sorted(biprune.MODELS))
    options.add_argument("--width", type=int, help="channels of the first stage")
    options.add_argument("--sparsities", nargs="+", type=float, default=[0.5, 0.7])
    options.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    options.add_argument("--rounds", type=int, default=15)
    options.add_argument("--channels-last", action="store_true")
    options = options.parse_args()
    rows: list[Row] = []
    for sparsity in options.sparsities:
        model = biprune.create_model(options.model, width=options.width)
        model = copy_model(model, channels_last=options.channels_last)
        rows += measure(model, sparsity, options.batches, options.threads, options.rounds)
    report(rows, options)


def measure(
    model: torch.nn.Module, sparsity: float, batches: Sequence[int], threads: int, rounds: int
) -> list[Row]:
    inputs = torch.zeros(2, 3, 32, 32)
    target, _ = Request(sparsity, "group").target(model, inputs)
    groups = target.structure.coupled
    assert groups is not None
    masks = target.select(magnitudes(target.weights(model)))
    masks.apply_(model)
    small = shrink(model, Coupling(groups.groups, {}), inputs)
    with TemporaryDirectory() as folder:
        variants, _ = ticket_variants(model, masks, small, inputs, Path(folder))
        measured = profile(variants, inputs, batches=batches, threads=threads, rounds=rounds)
    return [
        {
            "units removed": f"{100 * sparsity:g} %",
            "batch": batch,
            "variant": row.name,
            "parameters": row.size.parameters,
            "MACs": "-" if row.size.macs is None else row.size.macs,
            "median, ms": row.latency[batch].median,
            "p90, ms": row.latency[batch].p90,
            "speed-up": row.latency[batch].speedup,
        }
        for batch in batches
        for row in measured.rows
    ]


if __name__ == "__main__":
    main()
