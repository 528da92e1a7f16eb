"""Draw docs/results.md: how accurate the methods are, at which cost, and how a mask settles.

python -m studies.laptop_figures docs/images
"""

from __future__ import annotations

import argparse
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from biprune.experiments.record import RunRecord
from biprune.report.figures import write_figures
from biprune.report.results import Comparison, sample_of
from biprune.report.summary import summarise
from studies.archive import Records, load
from studies.full_size import full_size
from studies.laptop_runs import BEFORE, GMP_NESTEROV, NOW, PAPER, Pick, Runs, picking
from studies.presets import HIGH

LINES: dict[str, Pick] = {
    **{version.name: version.usual for version in (NOW, BEFORE)},
    **{f"{version.name}, a fifth of IMP's passes": version.long for version in (NOW, BEFORE)},
    "bip": PAPER,
    **{name: picking(name) for name in ("imp", "omp", "gmp", "hydra", "magnitude")},
}
SPARSITY = 0.95  # at which cost is shown


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("images", type=Path)
    options = parser.parse_args()
    options.images.mkdir(parents=True, exist_ok=True)
    for name, comparison in drawn(load()).items():
        with TemporaryDirectory() as folder:
            write_figures([comparison], folder)
            shutil.copy(Path(folder, name), options.images)


def drawn(records: Records) -> dict[str, Comparison]:
    """The files, and of what they are; without those that there are no runs for."""
    found: dict[str, Comparison] = {}
    if compared := laptop(records):
        cells = tuple(cell for cell in compared.cells if cell.sparsity == SPARSITY)
        found["resnet-8-on-cifar-10-accuracy.svg"] = compared
        found["resnet-8-on-cifar-10-passes.svg"] = replace(compared, cells=cells)
    whole = [record for record in full_size(records) if record.spec.sparsity]
    if compared := _compared(records, whole):
        compared = replace(compared, title="ResNet-20 on CIFAR-10")
        found["resnet-20-on-cifar-10-iou.svg"] = compared
    return found


def laptop(records: Records) -> Comparison | None:
    """The rows that are drawn, each under one name whatever its runs differ in.

    Dense are the networks that were trained on as long and not pruned.
    """
    runs = Runs(records.values())
    trained_on = sample_of(GMP_NESTEROV(runs, 0.0))
    picked = {name: [r for s in HIGH for r in pick(runs, s)] for name, pick in LINES.items()}
    compared = {name: _compared(records, own) for name, own in picked.items()}
    parts = {name: part for name, part in compared.items() if part}
    everything = _compared(records, [r for own in picked.values() for r in own])
    return everything and replace(
        everything,
        title="ResNet-8 on CIFAR-10",
        dense=trained_on if trained_on.n else None,
        methods={name: next(iter(part.methods.values())) for name, part in parts.items()},
        cells=tuple(replace(c, label=name) for name, part in parts.items() for c in part.cells),
    )


def _compared(records: Records, picked: list[RunRecord]) -> Comparison | None:
    if not picked:
        return None
    dense = [records.get(record.spec.dense_spec.key) for record in picked]
    (comparison,) = summarise([*picked, *(record for record in dense if record is not None)])
    return comparison


if __name__ == "__main__":
    main()
