"""Undamaged files of every kind that biprune writes and reads, made once a process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import biprune
from biprune.experiments.runner import Runner
from biprune.experiments.store import Store
from biprune.experiments.sweep import grid, sweep
from biprune.files.small import save_small
from biprune.structured.shrink import shrink

EPOCHS = 3


@cache
def scratch() -> Path:
    """A folder that is gone when the process is."""
    folder = Path(tempfile.mkdtemp(prefix="biprune-faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def empty(name: str) -> Path:
    """An empty folder of `scratch`."""
    folder = scratch() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@cache
def made(kind: str, seed: int = 0) -> Path:
    """The folder of one of the kinds below, which nobody may change but for a moment."""
    makers = (dense, ticket, grouped, small, graph, store, unfinished)
    return {make.__name__: make for make in makers}[kind](seed)


@cache
def data() -> biprune.Dataset:
    return biprune.load_data("digits", subset=60)


@cache
def _trained(seed: int) -> biprune.TrainResult:
    model = biprune.create_model("resnet8", in_channels=1, width=2, seed=seed)
    return biprune.train(model, data(), epochs=1, seed=seed)


def dense(seed: int) -> Path:
    """A trained model with its states to rewind to."""
    return biprune.save_dense(_trained(seed), empty(f"dense-{seed}"), data=data().options)


def ticket(seed: int) -> Path:
    """Single weights, with the rounds of IMP in folders of their own."""
    method = biprune.IMP(epochs=1)
    found = biprune.prune(_trained(seed), data(), method, sparsity=0.3, seed=seed)
    return found.save(empty(f"ticket-{seed}"))


@cache
def _grouped(seed: int) -> biprune.Ticket:
    chosen = {"structure": "group", "budget": {"macs": 0.6}}
    return biprune.prune(_trained(seed), data(), "omp", epochs=1, seed=seed, **chosen)


def grouped(seed: int) -> Path:
    """Coupled groups."""
    return _grouped(seed).save(empty(f"grouped-{seed}"))


def small(seed: int) -> Path:
    """What is left of `grouped`."""
    return save_small(_grouped(seed).shrink(), empty(f"small-{seed}"))


def graph(seed: int) -> Path:
    """The same as a graph, which the file itself holds."""
    ticket = _grouped(seed)
    found = shrink(ticket.model, None, ticket.example_input(2), form="graph")
    return save_small(found, empty(f"graph-{seed}"))


def store(seed: int) -> Path:
    """The records of a dense run and two pruned ones, the dense model beside them."""
    folder = empty(f"store-{seed}")
    specs = grid(
        ["omp", "gmp"],
        model="resnet8",
        data="digits",
        sparsities=[0.5],
        seeds=[seed],
        passes=1,
        dense={"epochs": 1},
        model_options={"width": 2},
        data_options={"subset": 60},
    )
    list(sweep(specs, Runner(Store(folder))))
    return folder


class StoppedError(Exception):
    """Ends a run after its second epoch, as a kill would."""


def unfinished(seed: int) -> Path:
    """The checkpoints of a training run of three epochs that ended after two."""
    folder = empty(f"unfinished-{seed}")

    def stop(event: biprune.Event) -> None:
        if event.epoch == 1 and event.record is not None:
            raise StoppedError

    try:
        train_on(folder, seed, progress=stop)
    except StoppedError:
        return folder
    raise AssertionError("the run was not stopped")


def train_on(folder: Path | None, seed: int, **options: Any) -> biprune.TrainResult:
    """The run of `unfinished`, to its end if nothing stops it."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        batches = [(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(3)]
    return biprune.train(model, batches, epochs=EPOCHS, lr=0.05, checkpoint=folder, **options)
