"""Exact top-k of many scores against torch's ways to it: `python benchmarks/selection.py --help`.

Every result is compared with a stable sort first, on continuous scores and on scores full of ties.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
from timing import environment, interleaved_medians
from torch import Tensor

from biprune.selection import num_kept, top_k_mask

SIZES = {"0.27 M": 268_336, "11 M": 11_164_352, "25 M": 25_502_912, "100 M": 100_000_000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--sizes", nargs="+", default=["0.27 M", "11 M", "25 M"], choices=SIZES)
    parser.add_argument("--sparsity", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = [measure(name, options.sparsity, options.rounds) for name in options.sizes]
    columns = list(rows[0])
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for row in rows:
        cells = (f"{v:.1f}" if isinstance(v, float) else str(v) for v in row.values())
        print("| " + " | ".join(cells) + " |")
    if options.json:
        content = {"sparsity": options.sparsity, "rows": rows, **environment()}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def measure(name: str, sparsity: float, rounds: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(SIZES[name], generator=generator).abs_()
    k = num_kept(sparsity, len(scores))
    for candidate in (scores, (scores * 8).round_()):
        if not torch.equal(top_k_mask(candidate, k), by_sort(candidate, k)):
            raise SystemExit(f"The selection of {name} differs from a stable sort.")
    candidates: dict[str, Callable[[], object]] = {
        "biprune": lambda: top_k_mask(scores, k),
        "sort": lambda: scores.sort(descending=True, stable=True),
        "topk": lambda: scores.topk(k, sorted=False),
        "kthvalue": lambda: scores.kthvalue(len(scores) - k + 1),
        "compare": lambda: scores > 1.0,
    }
    medians = interleaved_medians(candidates, rounds)
    times = {f"{key}, ms": 1000 * seconds for key, seconds in medians.items()}
    return {"scores": name, **times, "sort / biprune": medians["sort"] / medians["biprune"]}


def by_sort(scores: Tensor, k: int) -> Tensor:
    mask = torch.zeros_like(scores, dtype=torch.bool)
    mask[scores.sort(descending=True, stable=True).indices[:k]] = True
    return mask


if __name__ == "__main__":
    main()
