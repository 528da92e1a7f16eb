"""Exact top-k of many scores against torch's ways to it.

python benchmarks/selection.py --sizes "11 M"

Every result is compared with a stable sort first, on continuous scores and on scores full of ties.
The memory is that of the most live bytes during the selection, in copies of the
scores, the mask it returns included.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from allocations import peak_bytes
from biprune.core.ranking import top_k_mask
from biprune.core.structure import num_kept
from timing import interleaved, medians, parser, ratio, report

SIZES = {"0.27 M": 268_336, "11 M": 11_164_352, "25 M": 25_502_912, "100 M": 100_000_000}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--sizes", nargs="+", default=list(SIZES), choices=SIZES)
    options.add_argument("--sparsity", type=float, default=0.9)
    options.add_argument("--rounds", type=int, default=5)
    options = options.parse_args()
    torch.set_num_threads(options.threads)
    report([measure(name, options.sparsity, options.rounds) for name in options.sizes], options)


def measure(name: str, sparsity: float, rounds: int) -> dict[str, object]:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(SIZES[name], generator=generator).abs_()
    k = num_kept(sparsity, len(scores))
    tied = (scores * 8).round_()
    for candidate in (scores, tied):
        if not torch.equal(top_k_mask(candidate, k), by_sort(candidate, k)):
            raise SystemExit(f"The selection of {name} differs from a stable sort.")
    copies = max(peak_bytes(lambda s=s: top_k_mask(s, k)) / s.nbytes for s in (scores, tied))
    candidates: dict[str, Callable[[], object]] = {
        "biprune": lambda: top_k_mask(scores, k),
        "sort": lambda: scores.sort(descending=True, stable=True),
        "topk": lambda: scores.topk(k, sorted=False),
        "kthvalue": lambda: scores.kthvalue(len(scores) - k + 1),
        "compare": lambda: scores > 1.0,
    }
    seconds = interleaved(candidates, rounds)
    times = {f"{key}, ms": 1000 * value for key, value in medians(seconds).items()}
    speed_up = ratio(seconds, "sort", "biprune")
    return {"scores": name, **times, "sort / biprune": speed_up, "copies": copies}


def by_sort(scores: Tensor, k: int) -> Tensor:
    mask = torch.zeros_like(scores, dtype=torch.bool)
    mask[scores.sort(descending=True, stable=True).indices[:k]] = True
    return mask


if __name__ == "__main__":
    main()
