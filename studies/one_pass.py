"""One pass an iteration against two, on CIFAR-10: `python -m studies.one_pass --help`.

python -m studies.one_pass --root DATA --seeds 0 1 2 --jsonl FILE

For each seed a dense ResNet-8 is trained, then pruned by two-pass BiP with `--passes` passes over
the data, by one-pass BiP with as many (equal cost) and with half as many (equal epochs). All else
but `--lr` is as published. Finished runs are in the file already and are not run again.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

import biprune
from biprune.methods.bip_plus import AS_PUBLISHED, BiPPlus, BiPPlusLevels
from studies.trials import add, cell, parser, records


def main() -> None:
    options = parser(__doc__, subset=10_000)
    options.add_argument("--model", default="resnet8")
    options.add_argument("--sparsities", type=float, nargs="+", default=[0.9, 0.95, 0.98])
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    for seed in options.seeds:
        run_seed(options, seed)
    print(markdown(records(options)))


class LaggedLevels(BiPPlusLevels):
    """The upper level moves by the gradient of the batch before; tried here, not in the product.

    It holds one more gradient, and a resumed run would need it.
    """

    _held: dict[str, Tensor] | None = None

    @torch.no_grad()
    def step(self, loss_scale: float | Tensor = 1.0) -> bool:
        """The lower level by this gradient, the upper by the one before."""
        del loss_scale
        with self._masked.masked_gradients() as (gradients, masked):
            self._lower_level.apply(masked)
            held, self._held = self._held, dict(gradients)
            if held is None:
                return True
            for name, gradient in held.items():
                torch.where(self.masks[name], gradient, torch.zeros(()), out=masked[name])
            self._move_scores(self._upper_gradients(held, masked))
            self._select_masks()
        return True


@dataclass(frozen=True)
class LaggedBiP(BiPPlus):
    """One-pass BiP with the levels above."""

    levels: ClassVar[type[BiPPlusLevels]] = LaggedLevels


def variants(passes: int, lr: float) -> dict[str, biprune.BiP]:
    half = passes // 2
    one_pass: dict[str, Any] = {**AS_PUBLISHED, "passes": 1, "lr": lr}
    return {
        "two passes": biprune.BiP(epochs=half, lr=lr),
        "one, the same gradient": BiPPlus(**one_pass, epochs=passes),
        "one, the last gradient": LaggedBiP(**one_pass, epochs=passes),
        "one, the same gradient, half the passes": BiPPlus(**one_pass, epochs=half),
        "one, the last gradient, half the passes": LaggedBiP(**one_pass, epochs=half),
    }


def run_seed(options: argparse.Namespace, seed: int) -> None:
    done = {(r["seed"], r["sparsity"], r["variant"]) for r in records(options)}
    methods = variants(options.passes, options.lr)
    cells = product(options.sparsities, methods)
    left = [cell for cell in cells if (seed, *cell) not in done]
    if not left:
        return
    data = biprune.load_data("cifar10", root=options.root, subset=options.subset, seed=seed)
    model = biprune.create_model(options.model, seed=seed)
    dense = biprune.train(model, data, epochs=options.passes, seed=seed)
    for sparsity, name in left:
        ticket = biprune.prune(dense, data, methods[name], sparsity=sparsity, seed=seed)
        record = {
            "variant": name,
            "sparsity": sparsity,
            "seed": seed,
            "accuracy": ticket.accuracy,
            "dense": dense.accuracy,
            "backward_passes": ticket.cost.backward_passes,
        }
        add(options, record)
        print(f"seed {seed}  {sparsity:g}  {name}: {ticket.accuracy:.2f}", flush=True)


def markdown(runs: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation (seeds), a row for a variant and a column for a sparsity."""
    sparsities = sorted({run["sparsity"] for run in runs})
    heads = [f"{100 * sparsity:g} %" for sparsity in sparsities]
    lines = ["| BiP | passes | " + " | ".join(heads) + " |", "|---" * (2 + len(heads)) + "|"]
    for name in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == name]
        cells = []
        for sparsity in sparsities:
            values = [run["accuracy"] for run in own if run["sparsity"] == sparsity]
            cells.append(cell(values))
        lines.append(f"| {name} | {own[0]['backward_passes']:,} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
