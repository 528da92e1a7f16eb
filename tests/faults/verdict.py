"""What a fault came to, and what counts as the same content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from biprune.core.groups import Groups
from biprune.core.masks import Masks

OK = "ok"
UNAVAILABLE = "cannot be brought about on this machine"
Fault = Callable[[int], str]  # from a seed to OK, UNAVAILABLE or what went wrong
MEASURED = ("seconds", "environment")  # what differs from run to run


def content(value: Any) -> Any:
    """All that a loaded value says, to be compared with ==: tensors as bytes, floats as text."""
    if isinstance(value, Tensor):
        raw = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return str(value.dtype), tuple(value.shape), raw
    if isinstance(value, nn.Module):
        held = value.state_dict(), getattr(value, "certificate", None)
        code = str(getattr(value, "graph", ""))  # of a small model that is one
        return [str(value), code, *map(content, held)]
    if isinstance(value, Masks):
        groups = value.structure.to_json() if isinstance(value.structure, Groups) else None
        named = str(value.structure.name), str(value.structure.scope), groups
        return [content(dict(value)), *map(content, named)]
    if is_dataclass(value):
        return {field.name: content(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): content(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [content(part) for part in value]
    return repr(value)


def unmeasured(found: Any) -> Any:
    """`content` without times: equal for two runs of the same command."""
    if isinstance(found, dict):
        return {key: unmeasured(part) for key, part in found.items() if key not in MEASURED}
    return [unmeasured(part) for part in found] if isinstance(found, list) else found


def refusal(error: BaseException, *names: Path | str) -> str:
    """OK if `error` is a sentence that names one of the files or folders.

    A subclass of ValueError is another library's: JSON's, pydantic's, a decoder's.
    """
    kind = type(error)
    text = str(error)
    if kind is not ValueError and not issubclass(kind, OSError):
        return f"raised a raw {kind.__name__}: {text[:200]}"
    if names and not any(str(name) in text for name in names):
        return f"the error names no file: {text[:200]}"
    if "\x1b" in text:
        return f"the error has an escape sequence in it: {text[:200]!r}"
    return OK
