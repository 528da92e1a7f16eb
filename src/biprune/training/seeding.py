"""Randomness that comes from a seed and leaves the caller's generators alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from biprune.core.checks import check_whole

DRAWS = 1 << 20  # the place in a run of a method's own draws; no epoch has this number


def derive_seed(seed: int, *path: int) -> int:
    """Return an independent seed for a place in a run, such as an epoch."""
    check_whole("seed", seed, at_least=0)
    sequence = np.random.SeedSequence((seed, *path))
    return int(sequence.generate_state(1, np.uint64)[0]) >> 1


def drawing_generator(seed: int, device: torch.device) -> torch.Generator:
    """Return a generator for a method's own draws, independent of the model's initialization."""
    return torch.Generator(device=device).manual_seed(derive_seed(seed, DRAWS))


def seed_all(seed: int, *loaders: Iterable[object]) -> None:
    """Seed torch, numpy, `random` and the generators of `loaders`."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    for loader in loaders:
        for generator in _generators(loader):
            generator.manual_seed(seed)
        if getattr(loader, "persistent_workers", False):
            # Persistent workers would carry their generators from epoch to epoch.
            loader._iterator = None  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def forked_rng(*loaders: Iterable[object]) -> Iterator[None]:
    """Restore every generator that `seed_all` touches when the context ends."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    held = (generator for loader in loaders for generator in _generators(loader))
    states = [(generator, generator.get_state()) for generator in held]
    try:
        with torch.random.fork_rng(range(torch.cuda.device_count())):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        for generator, state in states:
            generator.set_state(state)


def _generators(loader: Iterable[object]) -> list[torch.Generator]:
    """Return the generators of a DataLoader and its samplers."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    holders = (
        loader,
        getattr(loader, "sampler", None),
        batch_sampler,
        getattr(batch_sampler, "sampler", None),
    )
    found = (getattr(holder, "generator", None) for holder in holders)
    return list(dict.fromkeys(g for g in found if isinstance(g, torch.Generator)))
