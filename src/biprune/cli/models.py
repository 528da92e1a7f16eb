"""Models for commands: of the registry, or the user's own from the current folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from biprune import Dataset


def check_model(name: str, options: Mapping[str, Any]) -> None:
    """Refuse an unknown model or option before any data is read, by building one.

    The user's own is not built here, since it may depend on the data's sizes.
    """
    from biprune import create_model

    if ":" not in name:
        create_model(name, **options)


def build_model(
    name: str, data: Dataset, options: Mapping[str, Any], *, seed: int = 0
) -> nn.Module:
    """A model with the inputs and outputs that `data` needs."""
    from biprune import create_model

    if ":" in name and (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    return create_model(
        name,
        num_classes=data.num_classes,
        in_channels=data.in_channels,
        seed=seed,
        **options,
    )
