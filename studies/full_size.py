"""What became of ResNet-20 on all 50,000 images of CIFAR-10: `python -m studies.run full-size`."""

from __future__ import annotations

from biprune.experiments.presets.base import RESNET20
from biprune.experiments.record import RunRecord
from biprune.report.wording import percent_of
from studies.archive import Records
from studies.laptop_runs import mark, noted

HEAD = "| run | test accuracy, % | data passes | minutes | IoU at epochs 1, 5 ... and the last |"
FULL = (RESNET20.model, RESNET20.data)


def full_size(records: Records) -> list[RunRecord]:
    """The runs by method and sparsity, the dense one first."""
    found = [r for r in records.values() if (r.spec.model, r.spec.data) == FULL]
    done = [r for r in found if r.status == "done"]
    return sorted(done, key=lambda r: (r.spec.sparsity > 0, r.spec.method, r.spec.sparsity))


def full_size_table(records: Records) -> str:
    """Accuracy, cost, and how the mask settles, as Markdown; only of what has been run."""
    lines = [HEAD, "|---|---:|---:|---:|---|"]
    runs = full_size(records)
    if runs and not runs[0].spec.sparsity:
        epoch = runs[0].backward_passes / runs[0].spec.dense["epochs"]
        lines += [_row(record, record.backward_passes / epoch) for record in runs]
    return "\n".join(noted(lines))


def _row(record: RunRecord, passes: float) -> str:
    spec = record.spec
    name = f"{spec.method}, {percent_of(spec.sparsity)}" if spec.sparsity else "dense"
    settling = [entry["iou"] for entry in record.history if "iou" in entry]
    shown = ", ".join(f"{settling[epoch]:.2f}" for epoch in range(0, len(settling), 4))
    last = f"{shown} ... {settling[-1]:.3f}" if settling else "-"
    accuracy, minutes = record.test_accuracy, record.seconds / 60
    old = mark([record])
    return f"| {name} | {accuracy:.2f}{old} | {passes:g} | {minutes:.0f} | {last} |"
