"""What it is worth that the scores of rows without a kept weight stand still, on the digits.

python -m studies.dead_rows --json studies/records/dead-rows.json

A dense ResNet-8 is trained for 20 epochs for each seed, then pruned with 20 passes, once with
`score_dead_rows` and once without. Every run has one thread. The records have `bip-plus-0.1` too,
which had this setting and cannot be run any more.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import biprune
from biprune.experiments.environment import environment
from biprune.experiments.sweep import with_passes
from biprune.methods import get_method
from studies.laptop_runs import cell

PASSES = 20
CASES = (  # method, structure, sparsity, width of the network
    ("bip", "weight", 0.95, 8),
    ("hydra", "weight", 0.95, 8),
    ("bip", "weight", 0.98, 16),
    ("bip", "filter", 0.5, 8),
    ("bip", "filter", 0.7, 8),
    ("hydra", "filter", 0.5, 8),
    ("hydra", "filter", 0.7, 8),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row(*case, seeds=options.seeds) for case in CASES]
    print(markdown(rows))
    if options.json:
        content = {"rows": rows, "seeds": options.seeds, **environment()}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def row(name: str, structure: str, sparsity: float, width: int, *, seeds: int) -> dict[str, Any]:
    accuracies: dict[bool, list[float | None]] = {True: [], False: []}
    for seed in range(seeds):
        data = biprune.load_data("digits", seed=seed)
        model = biprune.create_model("resnet8", width=width, in_channels=1, seed=seed)
        dense = biprune.train(model, data, epochs=PASSES, seed=seed)
        for scored, values in accuracies.items():
            method = with_passes(get_method(name, {"score_dead_rows": scored}), sparsity, PASSES)
            ticket = biprune.prune(
                dense, data, method, sparsity=sparsity, structure=structure, seed=seed
            )
            values.append(ticket.accuracy)
    case = {"method": name, "structure": structure, "sparsity": sparsity, "width": width}
    print(case, accuracies, flush=True)
    return {**case, "scored": accuracies[True], "still": accuracies[False]}


def markdown(rows: list[dict[str, Any]]) -> str:
    """Mean, standard deviation and number of seeds of each case."""
    lines = ["| run | dead rows scored | dead rows still |", "|---|---:|---:|"]
    for found in rows:
        name = f"`{found['method']}`, {found['structure']}s, {found['sparsity']:.0%}"
        wide = f", width {found['width']}" if found["width"] != 8 else ""
        lines.append(f"| {name}{wide} | {cell(found['scored'])} | {cell(found['still'])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
