"""bip-plus against GMP, movement and one-shot magnitude pruning on two small transformers.

python -m studies.on_transformers --root DATA
python -m studies.on_transformers --print --page docs/transformers.md

Every method prunes the same dense nets in as many steps of AdamW, at its own best rate: the one of
a grid that is best in validation at 90 % on a seed of its own. Each run is one line of the records;
those that are there are not run again. `--print` runs nothing: it prints the tables, and puts them
between <!-- name --> and <!-- end --> of a page.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import nn

import biprune
from biprune.experiments.environment import environment
from studies.transformer_tables import (
    COMPARED,
    NONE,
    SEEDS,
    TUNED_AT,
    TUNING,
    VARIANTS,
    Record,
    Row,
    Settings,
    best,
    filled,
    next_rate,
    tables,
    tuning,
)
from studies.transformer_tasks import Task, images_task, text_task

FIRST_RATES = {"text": (4e-3, 8e-3), "images": (2e-3, 4e-3)}
RECORDS = Path(__file__).parent / "records" / "on-transformers.jsonl"


@dataclass(frozen=True)
class Run:
    """What decides a run on a task; `amount` is the sparsity, or n:m."""

    method: str
    amount: float | str
    lr: float
    seed: int
    settings: Settings


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, help="folder of cifar-10-batches-bin")
    parser.add_argument("--jsonl", type=Path, default=RECORDS, metavar="FILE")
    parser.add_argument("--store", type=Path, default=Path("runs/transformers"), help="dense nets")
    parser.add_argument("--print", action="store_true", help="run nothing")
    parser.add_argument("--page", type=Path, help="where to put the tables")
    options = parser.parse_args()
    if not options.print:
        if options.root is None:
            parser.error("--root says where CIFAR-10 is; --print does without")
        torch.set_num_threads(1)
        study = Study(options.jsonl, options.store)
        study.carry_out([text_task(), images_task(options.root)])
    found = tables(read(options.jsonl))
    print(*found.values(), sep="\n\n")
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(filled(page, found), encoding="utf-8")


class Study:
    """The runs, in an order in which the tables that matter most are whole first."""

    def __init__(self, records: Path, store: Path) -> None:
        self._path = records

        @cache
        def dense(task: Task, seed: int) -> tuple[nn.Module, list[float], float | None]:
            model, curve = task.dense(seed, store)
            test = None if seed == TUNING else task.data.measure(model, "test")
            return model, curve, test

        self._dense = dense

    def carry_out(self, tasks: Sequence[Task]) -> None:
        """Tune and run everything."""
        for task in tasks:
            for row in COMPARED:
                self.tune(task, row)
        for amounts in ((0.9, 0.8), ("2:4",), (0.5,)):
            for task, seed, amount, row in product(tasks, SEEDS, amounts, COMPARED):
                self.run(task, row, amount, self.best_rate(task, row), seed)
        for task in tasks:
            for row, amount in product(VARIANTS, (TUNED_AT, 0.8)):
                compared = next(each for each in COMPARED if each[0] == row[0])
                self.run(task, row, amount, self.best_rate(task, compared), TUNING)
            self.tune(task, (NONE, {}))
            for seed in SEEDS:
                self.run(task, (NONE, {}), 0.0, self.best_rate(task, (NONE, {})), seed)

    def tune(self, task: Task, row: Row) -> None:
        """Walk the grid until the best rate has a worse one on either side."""
        first = FIRST_RATES[task.name]
        amount = 0.0 if row[0] == NONE else TUNED_AT
        while (lr := next_rate(tuning(self.of(task), row), first)) is not None:
            self.run(task, row, amount, lr, TUNING)

    def best_rate(self, task: Task, row: Row) -> float:
        """The rate that is best in tuning."""
        return best(tuning(self.of(task), row))

    def of(self, task: Task) -> list[Record]:
        """The records of a task as it is now."""
        return [r for r in read(self._path) if task.key.items() <= r.items()]

    def run(self, task: Task, row: Row, amount: float | str, lr: float, seed: int) -> None:
        """Carry out a run and add it to the records, unless they have it."""
        run = Run(row[0], amount, lr, seed, row[1])
        if any(asdict(run).items() <= record.items() for record in self.of(task)):
            return
        began = time.process_time()
        made = {**task.key, **asdict(run), **self.outcome(task, run)}
        made |= {"cpu_seconds": round(time.process_time() - began, 1), **environment()}
        with self._path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(made) + "\n")
        shown = (run.method, run.amount, run.lr, run.seed, *run.settings.values())
        print(task.name, *shown, made["validation"], made["test"], flush=True)

    def outcome(self, task: Task, run: Run) -> dict[str, Any]:
        """What the pruned net is worth; a run that diverges is worth nothing."""
        dense, curve, dense_test = self._dense(task, run.seed)
        sizes = task.sizes
        common: dict[str, Any] = {
            "steps": sizes.steps,
            "optimizer": "adamw",
            "lr": run.lr,
            "autocast": sizes.autocast,
            "loss": task.loss,
            "seed": run.seed,
        }
        data = task.data.batches(sizes.steps, sizes.batch)
        found: dict[str, Any] = {"validation": None, "test": None}
        try:
            if run.method == NONE:
                model = biprune.train(dense, data, rewind_epochs=(), **common).model
            else:
                by = "structure" if isinstance(run.amount, str) else "sparsity"
                common |= {"include": "blocks.*", by: run.amount, **run.settings}
                ticket = biprune.prune(dense, data, run.method, **common)
                model = ticket.model
                found |= {"kept": ticket.masks.kept, "of": ticket.masks.total}
            # The test is read for what is reported alone.
            for split in ("validation", "test") if run.seed != TUNING else ("validation",):
                found[split] = task.data.measure(model, split)
        except FloatingPointError as error:
            found["diverged"] = str(error)
        return {**found, "dense_test": dense_test, "dense_curve": curve}


def read(path: Path) -> list[Record]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
