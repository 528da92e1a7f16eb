"""Settings, versions and numbers of every run, folded away at the end of a comparison."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from biprune.experiments.record import RunRecord
from biprune.report.comparison import Comparison
from biprune.report.formatting import listed, percent_of
from biprune.report.labels import method_labels
from biprune.report.summary import failure

_COLUMNS = (
    "run",
    "method",
    "sparsity",
    "reached",
    "seed",
    "status",
    "test (%)",
    "validation (%)",
    "backward passes",
    "seconds",
    "finished",
    "versions",
)


def details_html(comparison: Comparison) -> str:
    """A table of the runs; below it the settings and versions they share, each once."""
    runs = [*comparison.dense_runs, *comparison.runs]
    pruned = method_labels([run.spec for run in comparison.runs])
    labels = {run.key: pruned.get(run.key, "dense") for run in runs}
    versions = list(dict.fromkeys(_versions(run) for run in runs))
    blocks = [_block(title, text) for title, text in _settings(runs, labels)]
    blocks += [_block(f"Versions {n}", text) for n, text in enumerate(versions, start=1)]
    head = "".join(f'<th scope="col">{column}</th>' for column in _COLUMNS)
    rows = "".join(_row(run, labels[run.key], versions) for run in runs)
    return (
        "<details><summary>Settings and versions of every run</summary>"
        f'<div class="scroll"><table class="runs"><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{''.join(blocks)}</details>"
    )


def _settings(runs: Iterable[RunRecord], labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Title and text of all settings but seed and sparsity; runs that share them share these."""
    sparsities: defaultdict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for run in runs:
        rest = {n: v for n, v in run.resolved.items() if n not in ("seed", "sparsity")}
        sparsities[labels[run.key], _json(rest)][percent_of(run.spec.sparsity)] = None
    blocks = Counter(label for label, _ in sparsities)
    for (label, text), places in sparsities.items():
        where = f" at {listed(list(places))}" if blocks[label] > 1 else ""
        yield f"Settings of {label}{where}", text


def _row(run: RunRecord, label: str, versions: Sequence[str]) -> str:
    cells = [
        run.key,
        label,
        percent_of(run.spec.sparsity),
        "-" if run.achieved_sparsity is None else percent_of(run.achieved_sparsity),
        str(run.spec.seed),
        run.status,
        _number(run.test_accuracy),
        _number(run.val_accuracy),
        f"{run.backward_passes:,}",
        f"{run.seconds:,.1f}",
        run.environment.get("finished", "-"),
        str(versions.index(_versions(run)) + 1),
    ]
    error = failure(run)
    title = f' class="hole" title="{escape(error)}"' if error else ""
    return f"<tr{title}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _block(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _versions(run: RunRecord) -> str:
    return _json({name: v for name, v in run.environment.items() if name != "finished"})


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, sort_keys=True, default=str)
