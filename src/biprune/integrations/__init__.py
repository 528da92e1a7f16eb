"""Callbacks for trainers, each imported from its own module and only when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Around the import of a trainer's package: says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"This callback needs {error.name}, which is not installed: "
            f"pip install 'biprune[{extra}]'",
            name=error.name,
        ) from None
