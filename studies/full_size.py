"""What became of ResNet-20 on all 50,000 images of CIFAR-10: `python -m studies.run full-size`."""

from __future__ import annotations

from biprune.experiments.record import RunRecord
from biprune.report.wording import percent_of
from studies.archive import Records
from studies.laptop_runs import noted
from studies.past_runs import mark, recorded
from studies.presets import STUDIES

HEAD = "| run | test accuracy, % | data passes | minutes | IoU at epochs 1, 5 ... and the last |"


def full_size_table(records: Records) -> str:
    """Accuracy, cost, and how the mask settles, as Markdown; only of what has been run."""
    lines = [HEAD, "|---|---:|---:|---:|---|"]
    specs = STUDIES["full-size"].specs("laptop")
    dense = records.get(specs[0].dense_spec.key)
    for spec in (specs[0].dense_spec, *specs):
        record = recorded(records, spec)
        if record is not None and record.status == "done" and dense is not None:
            epoch = dense.backward_passes / spec.dense["epochs"]
            lines.append(_row(record, record.backward_passes / epoch))
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
