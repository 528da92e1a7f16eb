"""Checks of arguments: each names the argument, what it got and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Real


def check_choice(argument: str, value: object, allowed: Iterable[str]) -> None:
    """Refuse a value that is not one of `allowed`."""
    if value not in (choices := tuple(allowed)):
        raise ValueError(f"`{argument}` must be one of {', '.join(choices)}, got {value!r}.")


def check_whole(argument: str, value: object, at_least: int) -> None:
    """Refuse what is not a whole number of `at_least` or more."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"`{argument}` must be a whole number, got {value!r}.")
    if value < at_least:
        raise ValueError(f"`{argument}` must be at least {at_least}, got {value}.")


def check_number(argument: str, value: object) -> None:
    """Refuse what is not a number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"`{argument}` must be a number, got {value!r}.")


def check_positive(argument: str, value: float) -> None:
    """Refuse what is not a finite number above 0."""
    check_number(argument, value)
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"`{argument}` must be positive, got {value:g}.")


def check_rate(argument: str, value: float) -> None:
    """Refuse what is not a finite number of 0 or more."""
    check_number(argument, value)
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"`{argument}` must be 0 or more, got {value:g}.")


def check_part(argument: str, value: float) -> None:
    """Refuse what is not a fraction of a run, above 0 and at most 1."""
    check_number(argument, value)
    if not 0 < value <= 1:
        raise ValueError(f"`{argument}` must be in (0, 1], got {value:g}.")
