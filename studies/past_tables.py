"""Tables from records of version 0.1.

python -m studies.past_tables

What each setting of `bip-plus-0.1` was worth, on seeds of their own; one pass an iteration against
two; all methods on the digits; and what it is worth that scores of dead rows stand still. The last
two can be made again by `biprune compare`, the others by nothing.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from biprune.experiments.record import RunRecord
from biprune.report.results import sample_of
from biprune.report.wording import described, points
from studies.archive import FOLDER, Records, load
from studies.judging import FEWEST_SEEDS, less
from studies.laptop_runs import BEFORE, SETTING, cell, mark, noted, shown
from studies.presets import CLAIM_SEEDS

Column = tuple[str, str]  # data and structure
COLUMNS: dict[Column, str] = {
    ("cifar10", "weight"): "CIFAR-10",
    ("digits", "weight"): "digits",
    ("cifar10", "filter"): "its filters",
    ("cifar10", "channel"): "its channels",
}
PASSES = {"digits": 20, "cifar10": 10}  # of the runs that are compared
NO_CHANGE = ""
# What made it another method than BiP as published; the page has these alone.
DIFFERENCES = (
    NO_CHANGE,
    "passes=2",
    "sparsity_schedule=direct",
    "follow_weights=False",
    "score_lr=0.1",
    "score_lr=0",
    "lr=0.01",
    "implicit_gradient=True",
    "nesterov=False",
    "freeze_pruned=False",
    "score_pruned=True",
    "settle=False",
)


def main() -> None:
    tables = (one_pass_table(), digits_table(), dead_rows_table())
    print(settings_table(load()), *tables, sep="\n\n")


def settings_table(records: Records, changes: Collection[str] | None = None) -> str:
    """Accuracy of the default, and of each change the paired difference to it, as Markdown."""
    runs: defaultdict[tuple[str, Column], list[RunRecord]] = defaultdict(list)
    for record in records.values():
        spec = record.spec
        if spec.method == BEFORE.name and spec.seed not in CLAIM_SEEDS:
            names = [name for name in sorted(spec.settings) if name not in ("epochs", SETTING)]
            change = described(spec.settings, names)
            length = spec.settings["epochs"] * spec.settings.get("passes", 1)
            if length == PASSES[spec.data]:
                runs[change, (spec.data, spec.structure)].append(record)
    found = {change for change, _ in runs}
    wanted = sorted(found) if changes is None else [c for c in changes if c in found]
    lines = [f"| change (seeds) | {' | '.join(COLUMNS.values())} |"]
    lines.append("|---|" + "---:|" * len(COLUMNS))
    for change in wanted:
        cells = [_worth(change, runs[change, at], runs[NO_CHANGE, at]) for at in COLUMNS]
        name = f"`{change}`" if change else "none"
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(noted(lines))


def _worth(change: str, runs: Iterable[RunRecord], default: Iterable[RunRecord]) -> str:
    runs, default = list(runs), list(default)
    if not change:
        return shown(sample_of(runs)) + mark(runs)
    paired = less(runs, default)
    if paired is None:
        return "-"
    error = paired.error if paired.n >= FEWEST_SEEDS else None  # two say nothing of the spread
    return f"{points(paired.mean, error)} ({paired.n}){mark([*runs, *default])}"


def one_pass_table() -> str:
    """Mean ± standard deviation (seeds), a row for a variant and a column for a sparsity."""
    lines = (FOLDER / "one-pass.jsonl").read_text(encoding="utf-8").splitlines()
    runs: list[dict[str, Any]] = [json.loads(line) for line in lines]
    sparsities = sorted({run["sparsity"] for run in runs})
    heads = [f"{100 * sparsity:g} %" for sparsity in sparsities]
    table = ["| BiP | passes | " + " | ".join(heads) + " |", "|---" * (2 + len(heads)) + "|"]
    for name in dict.fromkeys(run["variant"] for run in runs):
        own = [run for run in runs if run["variant"] == name]
        cells = [cell([r["accuracy"] for r in own if r["sparsity"] == s]) for s in sparsities]
        table.append(f"| {name} | {own[0]['backward_passes']:,} | " + " | ".join(cells) + " |")
    return "\n".join(table)


def digits_table() -> str:
    """The methods of version 0.1 on the digits at 95 %, the most accurate first."""
    rows = json.loads((FOLDER / "digits-95.json").read_text(encoding="utf-8"))["rows"]
    lines = ["| method | test accuracy, % (seeds) | backward passes |", "|---|---|---|"]
    for row in rows:
        accuracies = cell(row["accuracies"])
        lines.append(f"| {row['method']} | {accuracies} | {row['backward_passes']:,} |")
    return "\n".join(lines)


def dead_rows_table() -> str:
    """With their scores learned, and without, by 20 passes on the digits."""
    rows = json.loads((FOLDER / "dead-rows.json").read_text(encoding="utf-8"))["rows"]
    lines = ["| run | dead rows scored | dead rows still |", "|---|---:|---:|"]
    for row in rows:
        name = f"`{row['method']}`, {row['structure']}s, {row['sparsity']:.0%}"
        wide = f", width {row['width']}" if row["width"] != 8 else ""
        lines.append(f"| {name}{wide} | {cell(row['scored'])} | {cell(row['still'])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
