"""Every method on the digits, and what it is worth that scores of dead rows stand still.

python -m studies.digits methods --json studies/records/digits-95.json
python -m studies.digits dead-rows --json studies/records/dead-rows.json

Each seed has a split and a dense ResNet-8 of its own. `methods` prunes it by all of them to 95 %
with the passes of 44 epochs; the paper's BiP spends two an iteration, so it has half the epochs,
and IMP divides them by its rounds. `dead-rows` has 20 passes, with `score_dead_rows` and without;
its records have `bip-plus-0.1` too, which had this setting and cannot be run any more. Every run
has one thread.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import biprune
from biprune.data import Dataset
from biprune.experiments.environment import environment
from biprune.experiments.sweep import with_passes
from biprune.methods import METHODS, get_method
from studies.laptop_runs import cell
from studies.past_methods import PAST

LONG, SHORT = 44, 20  # passes over the data
CASES = (  # of dead rows: method, structure, sparsity, width of the network
    ("bip", "weight", 0.95, 8),
    ("hydra", "weight", 0.95, 8),
    ("bip", "weight", 0.98, 16),
    ("bip", "filter", 0.5, 8),
    ("bip", "filter", 0.7, 8),
    ("hydra", "filter", 0.5, 8),
    ("hydra", "filter", 0.7, 8),
)
Rows = list[dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study", choices=["methods", "dead-rows"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.study == "methods":
        rows = methods(options.seeds)
        print(methods_table(rows))
    else:
        rows = dead_rows(options.seeds)
        print(dead_rows_table(rows))
    if options.json:
        content = {"rows": rows, "seeds": options.seeds, **environment()}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def methods(seeds: int) -> Rows:
    """The most accurate first."""
    names = [name for name, method in METHODS.items() if method.prunes and name not in PAST]
    found: dict[str, list[float | None]] = {name: [] for name in ("dense", *names)}
    passes: dict[str, int] = {}
    for seed in range(seeds):
        dense, data = trained(seed, LONG)
        results: dict[str, Any] = {"dense": dense}
        for name in names:
            method = with_passes(METHODS[name](), 0.95, LONG)
            results[name] = biprune.prune(dense, data, method, sparsity=0.95, seed=seed)
        for name, result in results.items():
            found[name].append(result.accuracy)
            passes[name] = result.cost.backward_passes
        print(seed, {name: values[-1] for name, values in found.items()}, flush=True)
    rows = [
        {"method": name, "accuracies": values, "backward_passes": passes[name]}
        for name, values in found.items()
    ]
    return sorted(rows, key=lambda row: -fmean(row["accuracies"]))


def dead_rows(seeds: int) -> Rows:
    """With the scores of dead rows learned, and with them standing still."""
    rows: Rows = []
    for name, structure, sparsity, width in CASES:
        accuracies: dict[bool, list[float | None]] = {True: [], False: []}
        for seed in range(seeds):
            dense, data = trained(seed, SHORT, width=width)
            for scored, values in accuracies.items():
                method = get_method(name, {"score_dead_rows": scored})
                method = with_passes(method, sparsity, SHORT)
                ticket = biprune.prune(
                    dense, data, method, sparsity=sparsity, structure=structure, seed=seed
                )
                values.append(ticket.accuracy)
        case = {"method": name, "structure": structure, "sparsity": sparsity, "width": width}
        rows.append({**case, "scored": accuracies[True], "still": accuracies[False]})
        print(rows[-1], flush=True)
    return rows


def trained(seed: int, epochs: int, **options: Any) -> tuple[biprune.TrainResult, Dataset]:
    data = biprune.load_data("digits", seed=seed)
    model = biprune.create_model("resnet8", in_channels=data.in_channels, seed=seed, **options)
    return biprune.train(model, data, epochs=epochs, seed=seed), data


def methods_table(rows: Rows) -> str:
    lines = ["| method | test accuracy, % (seeds) | backward passes |", "|---|---|---|"]
    for row in rows:
        accuracies = cell(row["accuracies"])
        lines.append(f"| {row['method']} | {accuracies} | {row['backward_passes']:,} |")
    return "\n".join(lines)


def dead_rows_table(rows: Rows) -> str:
    lines = ["| run | dead rows scored | dead rows still |", "|---|---:|---:|"]
    for row in rows:
        name = f"`{row['method']}`, {row['structure']}s, {row['sparsity']:.0%}"
        wide = f", width {row['width']}" if row["width"] != 8 else ""
        lines.append(f"| {name}{wide} | {cell(row['scored'])} | {cell(row['still'])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
