"""Every method at one sparsity on the digits, equal passes, several seeds: a table with its spread.

python -m studies.methods_on_digits --sparsity 0.95 --seeds 5 --json FILE

A dense ResNet is trained for each seed; every method then gets the passes of `--epochs` epochs. BiP
as published spends two passes an iteration, so it runs half the epochs. IMP divides the epochs by
its rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import biprune
from biprune.experiments.environment import environment
from biprune.experiments.sweep import with_passes
from biprune.methods import METHODS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="resnet8")
    parser.add_argument("--sparsity", type=float, default=0.95)
    parser.add_argument("--epochs", type=int, default=44, help="passes over the data of each run")
    parser.add_argument("--seeds", type=int, default=5)
    pruning = [name for name, method in METHODS.items() if method.prunes]
    parser.add_argument("--methods", nargs="+", default=pruning, choices=pruning)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    accuracies: dict[str, list[float]] = {"dense": [], **{name: [] for name in options.methods}}
    passes: dict[str, int] = {}
    for seed in range(options.seeds):
        data = biprune.load_data("digits", seed=seed)
        model = biprune.create_model(options.model, in_channels=data.in_channels, seed=seed)
        dense = biprune.train(model, data, epochs=options.epochs, seed=seed)
        record(accuracies, passes, "dense", dense)
        for name in options.methods:
            method = with_passes(METHODS[name](), options.sparsity, options.epochs)
            ticket = biprune.prune(dense, data, method, sparsity=options.sparsity, seed=seed)
            record(accuracies, passes, name, ticket)
            print(f"seed {seed} {name} {ticket.accuracy:.2f}", flush=True)
    rows = summarise(accuracies, passes)
    print(markdown(rows, options.seeds))
    if options.json:
        content = {"settings": {**vars(options), "json": None}, "rows": rows, **environment()}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def record(accuracies: dict, passes: dict, name: str, result: Any) -> None:
    accuracies[name].append(result.accuracy)
    passes[name] = result.cost.backward_passes


def summarise(accuracies: dict[str, list[float]], passes: dict[str, int]) -> list[dict[str, Any]]:
    rows = [
        {
            "method": name,
            "mean": statistics.mean(values),
            "std": statistics.stdev(values) if len(values) > 1 else 0.0,
            "accuracies": values,
            "backward_passes": passes[name],
        }
        for name, values in accuracies.items()
    ]
    return sorted(rows, key=lambda row: -row["mean"])


def markdown(rows: list[dict[str, Any]], seeds: int) -> str:
    lines = [f"| method | test accuracy, %, n = {seeds} | backward passes |", "|---|---|---|"]
    lines += [
        f"| {row['method']} | {row['mean']:.2f} ± {row['std']:.2f} | {row['backward_passes']:,} |"
        for row in rows
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
