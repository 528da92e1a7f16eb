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
from biprune.report.comparison import Comparison
from biprune.report.figures import write_figures
from biprune.report.summary import summarise
from laptop_runs import BIP, LONG_BIP, PAPER, Pick, Runs, picking

LINES: dict[str, Pick] = {
    "bip": BIP,
    "bip, a fifth of IMP's passes": LONG_BIP,
    "bip-paper": PAPER,
    **{name: picking(name) for name in ("imp", "omp", "gmp", "hydra", "magnitude")},
}
CHOSEN = (
    "resnet-8-on-cifar-10-accuracy.svg",
    "resnet-8-on-cifar-10-passes.svg",
    "resnet-20-on-cifar-10-iou.svg",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("images", type=Path)
    options = parser.parse_args()
    store = Store(options.store)
    with TemporaryDirectory() as folder:
        for path in write_figures([laptop(store), full_size(store)], folder):
            if path.name in CHOSEN:
                shutil.copy(path, options.images)


def laptop(store: Store) -> Comparison:
    """The rows that are drawn, each under one name whatever its runs differ in."""
    runs = Runs(store)
    picked = {name: [r for s in HIGH for r in pick(runs, s)] for name, pick in LINES.items()}
    parts = {name: _compared(store, records) for name, records in picked.items() if records}
    everything = _compared(store, [r for records in picked.values() for r in records])
    return replace(
        everything,
        title="ResNet-8 on CIFAR-10",
        methods={name: next(iter(part.methods.values())) for name, part in parts.items()},
        cells=tuple(replace(c, label=name) for name, part in parts.items() for c in part.cells),
    )


def full_size(store: Store) -> Comparison:
    records = [store.get(spec) for spec in PRESETS["full-size"].specs("laptop")]
    compared = _compared(store, [r for r in records if r is not None and r.status == "done"])
    return replace(compared, title="ResNet-20 on CIFAR-10")


def _compared(store: Store, records: list[RunRecord]) -> Comparison:
    dense = [store.get(record.spec.dense_spec) for record in records]
    (comparison,) = summarise([*records, *(record for record in dense if record is not None)])
    return comparison


if __name__ == "__main__":
    main()
