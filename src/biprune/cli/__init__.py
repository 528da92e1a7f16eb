"""The command line. Nothing else in biprune prints; help is shown without importing torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; see `app.main`."""
    try:
        from biprune.cli import app
    except KeyboardInterrupt:  # nothing has begun
        sys.exit(130)
    app.main(arguments)
