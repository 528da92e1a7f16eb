"""The page of the zoo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def page(records: Sequence[dict[str, Any]]) -> str:
    """The page, from the records."""
    return "".join(f"{record['model']}\n" for record in records)
