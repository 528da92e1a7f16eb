"""What it is worth that the scores of rows without a kept weight stand still, on the digits.

python -m studies.dead_rows --json studies/records/dead-rows.json

A dense ResNet-8 is trained for 20 epochs for each seed, then pruned with 20 passes, once with
`score_dead_rows` and once without. Every run has one thread.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

import biprune
from biprune.experiments.environment import environment
from biprune.experiments.sweep import with_passes
from biprune.methods import get_method
from studies.trials import cell

PASSES = 20


class Case(NamedTuple):
    """A method at one sparsity on one network."""

    method: str
    structure: str
    sparsity: float
    width: int = 8


CASES = (
    Case("bip-plus", "weight", 0.95),
    Case("bip-plus", "weight", 0.97),
    Case("bip-plus", "weight", 0.98),
    Case("bip", "weight", 0.95),
    Case("hydra", "weight", 0.95),
    Case("bip-plus", "weight", 0.99, width=16),
    Case("bip", "weight", 0.98, width=16),
    Case("bip", "filter", 0.5),
    Case("bip", "filter", 0.7),
    Case("hydra", "filter", 0.5),
    Case("hydra", "filter", 0.7),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row(case, options.seeds) for case in CASES]
    print(markdown(rows))
    if options.json:
        content = {"rows": rows, "seeds": options.seeds, **environment()}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def row(case: Case, seeds: int) -> dict[str, Any]:
    pairs = [accuracies(case, seed) for seed in range(seeds)]
    scored, still = (list(part) for part in zip(*pairs, strict=True))
    print(case, scored, still, flush=True)
    return {**case._asdict(), "scored": scored, "still": still}


def accuracies(case: Case, seed: int) -> tuple[float, float]:
    """With the scores of dead rows learned, and with them standing still."""
    data = biprune.load_data("digits", seed=seed)
    model = biprune.create_model(
        "resnet8", width=case.width, in_channels=data.in_channels, seed=seed
    )
    dense = biprune.train(model, data, epochs=PASSES, seed=seed)

    def accuracy(scored: bool) -> float:
        method = get_method(case.method, {"score_dead_rows": scored})
        method = with_passes(method, case.sparsity, PASSES)
        ticket = biprune.prune(
            dense, data, method, sparsity=case.sparsity, structure=case.structure, seed=seed
        )
        assert ticket.accuracy is not None
        return ticket.accuracy

    return accuracy(True), accuracy(False)


def markdown(rows: list[dict[str, Any]]) -> str:
    """Mean, standard deviation and number of seeds of each case."""
    lines = ["| run | dead rows scored | dead rows still |", "|---|---:|---:|"]
    for found in rows:
        name = f"`{found['method']}`, {found['structure']}s, {found['sparsity']:.0%}"
        wide = (
            f", width {found['width']}" if found["width"] != Case._field_defaults["width"] else ""
        )
        lines.append(f"| {name}{wide} | {cell(found['scored'])} | {cell(found['still'])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
