"""Randomness that comes from a seed and leaves the caller's generators alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derive_seed(seed: int, *path: int) -> int:
    """An independent seed for a place in a run, such as an epoch."""
    sequence = np.random.SeedSequence((seed, *path))
    return int(sequence.generate_state(1, np.uint64)[0]) >> 1


def seed_all(seed: int, loader: Iterable[object]) -> None:
    """Seed torch, numpy, `random`, and the generator a loader brings along."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if isinstance(generator := getattr(loader, "generator", None), torch.Generator):
        generator.manual_seed(seed)


@contextmanager
def forked_rng(loader: Iterable[object], device: torch.device) -> Iterator[None]:
    """Put every generator that `seed_all` touches back as it was."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    generator = getattr(loader, "generator", None)
    loader_state = generator.get_state() if isinstance(generator, torch.Generator) else None
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        if loader_state is not None and generator is not None:
            generator.set_state(loader_state)
