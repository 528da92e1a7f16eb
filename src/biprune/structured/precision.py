"""Float64 throughout, whatever a model's own code casts to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@contextmanager
def raised(dtype: torch.dtype) -> Iterator[None]:
    """In float64, whatever a model's own code casts to less is float64 as well."""
    if dtype != torch.float64:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _Raised():
            yield
    finally:
        torch.set_default_dtype(before)


class _Raised(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = {name: _more(value) for name, value in (kwargs or {}).items()}
        return func(*map(_more, args), **named)


def _more(value: Any) -> Any:
    low = (torch.float32, torch.float16, torch.bfloat16)
    return torch.float64 if isinstance(value, torch.dtype) and value in low else value
