"""What it saves a training step that freed memory is kept for the next one.

python benchmarks/freed_memory.py --models resnet18

Each candidate is a process of its own, for how freed memory is treated is a process's choice; they
take turns. The step is the minimal dense one of `step_cost`. The command line keeps freed memory.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
from multiprocessing.connection import Connection

import torch

import biprune
from biprune.training.process import keep_freed_memory
from steps import dense_step, new_model, random_batches
from timing import interleaved, medians, parser, ratio, report

KINDS = ("handed back", "kept")


def main() -> None:
    options = parser(__doc__)
    models = ["resnet20", "resnet18", "vgg16"]
    options.add_argument("--models", nargs="+", default=models, choices=sorted(biprune.MODELS))
    options.add_argument("--batch", type=int, default=64)
    options.add_argument("--rounds", type=int, default=15)
    options = options.parse_args()
    report([measure(name, options) for name in options.models], options)


def measure(name: str, options: argparse.Namespace) -> dict[str, object]:
    workers = {kind: Worker(name, options, keep=kind == "kept") for kind in KINDS}
    try:
        steps = {kind: worker.step for kind, worker in workers.items()}
        seconds = interleaved(steps, options.rounds)
        pages = {kind: worker.pages() for kind, worker in workers.items()}
    finally:
        for worker in workers.values():
            worker.end()
    return {
        "model": name,
        **{f"{kind}, s": value for kind, value in medians(seconds).items()},
        "kept / handed back": ratio(seconds, "kept", "handed back"),
        **{f"pages a step, {kind}": count for kind, count in pages.items()},
    }


class Worker:
    """A process that makes a step when told to, with all of its own memory."""

    def __init__(self, name: str, options: argparse.Namespace, *, keep: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, options, keep))
        self._process.start()
        self._pages: list[int] = []

    def step(self) -> None:
        """Make one and wait for it."""
        self._orders.send(True)
        self._pages.append(self._orders.recv())

    def pages(self) -> int:
        """Fresh pages in the last step."""
        return self._pages[-1]

    def end(self) -> None:
        """End the process."""
        self._orders.send(False)
        self._process.join()


def _serve(orders: Connection, name: str, options: argparse.Namespace, keep: bool) -> None:
    torch.set_num_threads(options.threads)
    if keep:
        keep_freed_memory()
    step = dense_step(new_model(name), random_batches(options.batch))
    while orders.recv():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        step()
        orders.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


if __name__ == "__main__":
    main()
