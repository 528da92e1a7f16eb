"""Draw docs/results.md: how accurate the methods are, at which cost, and how a mask settles.

python benchmarks/laptop_figures.py docs/results/laptop docs/images
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from biprune.experiments.presets import PRESETS
from biprune.experiments.presets.evidence import HIGH
from biprune.experiments.record import RunRecord
from biprune.experiments.store import Store
from biprune.report.comparison import Comparison, sample_of
from biprune.report.figures import write_figures
from biprune.report.summary import summarise
from laptop_runs import BIP, GMP_NESTEROV, LONG_BIP, PAPER, Pick, Runs, picking
from past_runs import recorded

LINES: dict[str, Pick] = {
    "bip": BIP,
    "bip, a fifth of IMP's passes": LONG_BIP,
    "bip-paper": PAPER,
    **{name: picking(name) for name in ("imp", "omp", "gmp", "hydra", "magnitude")},
}
SPARSITY = 0.95  # at which cost is shown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("images", type=Path)
    options = parser.parse_args()
    store = Store(options.store)
    options.images.mkdir(parents=True, exist_ok=True)
    for name, comparison in drawn(store).items():
        with TemporaryDirectory() as folder:
            write_figures([comparison], folder)
            shutil.copy(Path(folder, name), options.images)


def drawn(store: Store) -> dict[str, Comparison]:
    """The files, and of what they are; without those that the store has no runs for."""
    found: dict[str, Comparison] = {}
    if compared := laptop(store):
        cells = tuple(cell for cell in compared.cells if cell.sparsity == SPARSITY)
        found["resnet-8-on-cifar-10-accuracy.svg"] = compared
        found["resnet-8-on-cifar-10-passes.svg"] = replace(compared, cells=cells)
    if compared := full_size(store):
        found["resnet-20-on-cifar-10-iou.svg"] = compared
    return found


def laptop(store: Store) -> Comparison | None:
    """The rows that are drawn, each under one name whatever its runs differ in.

    Dense are the networks that were trained on as long and not pruned.
    """
    runs = Runs(store)
    trained_on = sample_of(GMP_NESTEROV(runs, 0.0))
    picked = {name: [r for s in HIGH for r in pick(runs, s)] for name, pick in LINES.items()}
    compared = {name: _compared(store, records) for name, records in picked.items()}
    parts = {name: part for name, part in compared.items() if part}
    everything = _compared(store, [r for records in picked.values() for r in records])
    return everything and replace(
        everything,
        title="ResNet-8 on CIFAR-10",
        dense=trained_on if trained_on.n else None,
        methods={name: next(iter(part.methods.values())) for name, part in parts.items()},
        cells=tuple(replace(c, label=name) for name, part in parts.items() for c in part.cells),
    )


def full_size(store: Store) -> Comparison | None:
    records = [recorded(store, spec) for spec in PRESETS["full-size"].specs("laptop")]
    compared = _compared(store, [r for r in records if r is not None and r.status == "done"])
    return compared and replace(compared, title="ResNet-20 on CIFAR-10")


def _compared(store: Store, records: list[RunRecord]) -> Comparison | None:
    if not records:
        return None
    dense = [store.get(record.spec.dense_spec) for record in records]
    (comparison,) = summarise([*records, *(record for record in dense if record is not None)])
    return comparison


if __name__ == "__main__":
    main()
