"""Filters removed by biprune and by Torch-Pruning, at the same MACs and the same passes.

python -m studies.beside_torch_pruning --root DATA

For each seed a dense ResNet-8 with projection shortcuts (on padded ones Torch-Pruning is wrong in
silence) is trained on a part of CIFAR-10. Torch-Pruning removes filters at once, by group norm or
by Taylor importance, and the rest is fine-tuned; biprune prunes to the same budget of MACs in as
many passes over the data. All train by SGD on one thread, cosine to zero. What is tested is the
small model in every row. Runs that have a record are not run again; rows named BiP are of version
0.1 and cannot be.
"""

from __future__ import annotations

import argparse
import copy
import json
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import biprune
from biprune.data import Dataset
from biprune.experiments.environment import environment
from biprune.structured.macs import total_macs
from biprune.training.batches import accuracy
from studies.archive import FOLDER
from studies.laptop_runs import cell

FILE = FOLDER / "beside-torch-pruning.jsonl"
IMAGES, PASSES, LR = 5_000, 12, 0.1  # to train on; over them, dense and again pruned
KEPT = (0.5, 0.25)  # of the MACs
TRIES = 12  # of the ratio at which Torch-Pruning is closest below the MACs
EXAMPLE = torch.zeros(2, 3, 32, 32)


class Given(NamedTuple):
    """What a row starts from; `kept` is of the MACs."""

    dense: biprune.TrainResult
    data: Dataset
    kept: float
    seed: int


Row = Callable[[Given], nn.Module]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, required=True, help="folder of cifar-10-batches-bin")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(3):
        run_seed(options.root, seed)
    print(markdown(records()))


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def run_seed(root: Path, seed: int) -> None:
    done = {(run["row"], run["kept"], run["seed"]) for run in records()}
    left = [(name, kept) for name, kept in product(ROWS, KEPT) if (name, kept, seed) not in done]
    if not left:
        return
    data = biprune.load_data("cifar10", root=root, subset=IMAGES, seed=seed)
    model = biprune.create_model("resnet8", shortcut="B", seed=seed)
    dense = biprune.train(model, data, epochs=PASSES, seed=seed)
    before = total_macs(dense.model, EXAMPLE)
    for name, kept in left:
        small = ROWS[name](Given(dense, data, kept, seed))
        record = {
            "row": name,
            "kept": kept,
            "seed": seed,
            "accuracy": accuracy(small, data.test),
            "dense": dense.accuracy,
            "macs": total_macs(small, EXAMPLE) / before,
            "parameters": sum(p.numel() for p in small.parameters()),
            "passes": PASSES,
            "subset": IMAGES,
            "lr": LR,
            **environment(),
        }
        with FILE.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
        print(f"seed {seed}  {kept:g}  {name}: {record['accuracy']:.2f}", flush=True)


def by_biprune(method: Callable[..., biprune.Method], **settings: Any) -> Row:
    def run(given: Given) -> nn.Module:
        chosen = method(epochs=PASSES, lr=LR, **settings)
        budget = {"macs": given.kept}
        ticket = biprune.prune(
            given.dense, given.data, chosen, structure="group", budget=budget, seed=given.seed
        )
        return ticket.shrink()

    return run


def by_torch_pruning(importance: str, *, together: bool) -> Row:
    def run(given: Given) -> nn.Module:
        small = closest_below(given.dense.model, given.data, given.kept, importance, together)
        recipe = {"epochs": PASSES, "lr": LR, "schedule": "cosine"}
        return biprune.train(small, given.data, optimizer="sgd", seed=given.seed, **recipe).model

    return run


def closest_below(
    model: nn.Module, data: Dataset, kept: float, importance: str, together: bool
) -> nn.Module:
    """Torch-Pruning's model at the smallest ratio that meets the MACs, found by halving."""
    low, high = 0.0, 1.0
    limit, best = kept * total_macs(model, EXAMPLE), None
    for _ in range(TRIES):
        ratio = (low + high) / 2
        small = torch_pruned(model, data, ratio, importance, together)
        if total_macs(small, EXAMPLE) <= limit:
            best, high = small, ratio
        else:
            low = ratio
    assert best is not None
    return best


def torch_pruned(
    model: nn.Module, data: Dataset, ratio: float, importance: str, together: bool
) -> nn.Module:
    # The extra `peer`; type checking runs without it.
    import torch_pruning as tp  # pyright: ignore[reportMissingImports]

    model = copy.deepcopy(model).train()
    by = {"norm": tp.importance.GroupMagnitudeImportance, "taylor": tp.importance.TaylorImportance}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner = tp.pruner.BasePruner(
            model,
            EXAMPLE,
            importance=by[importance](),
            global_pruning=together,
            pruning_ratio=ratio,
            max_pruning_ratio=0.9,
            ignored_layers=[model.get_submodule("head")],
        )
        if importance == "taylor":
            with torch.random.fork_rng():
                torch.manual_seed(0)
                images, labels = next(iter(data.train))
            cross_entropy(model(images), labels).backward()
        pruner.step()
    model.zero_grad(set_to_none=True)
    return model


ROWS: dict[str, Row] = {
    "Torch-Pruning, group norm": by_torch_pruning("norm", together=False),
    "Torch-Pruning, Taylor, global": by_torch_pruning("taylor", together=True),
    "biprune, magnitude": by_biprune(biprune.Magnitude, schedule="cosine"),
    "biprune, bip-plus": by_biprune(biprune.BiPPlus),
    "biprune, GMP": by_biprune(biprune.GMP),
}


def markdown(runs: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation (seeds) of the accuracy, and the MACs reached."""
    fractions = sorted({run["kept"] for run in runs}, reverse=True)
    heads = [f"{100 * kept:g} % of the MACs | reached" for kept in fractions]
    lines = ["| | " + " | ".join(heads) + " |", "|---" * (1 + 2 * len(heads)) + "|"]
    for name in dict.fromkeys(run["row"] for run in runs):
        cells = []
        for kept in fractions:
            own = [run for run in runs if run["row"] == name and run["kept"] == kept]
            cells.append(cell([run["accuracy"] for run in own]))
            reached = [100 * run["macs"] for run in own]
            cells.append(f"{mean(reached):.1f} %" if reached else "")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
