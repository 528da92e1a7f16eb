"""Plain data, as JSON gives it back, as classes with fields."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints


def from_plain(kind: Any, value: Any) -> Any:
    """The `kind` that became `value`: a dataclass, a collection, a number or a text.

    Raises:
        ValueError: It was none.
    """
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, Mapping):
        return _with_fields(kind, value)
    if origin is Mapping and isinstance(value, Mapping):
        key = int if parts[0] is int else str
        return {key(name): from_plain(parts[1], each) for name, each in value.items()}
    if origin in (Sequence, tuple) and isinstance(value, list):
        found = [from_plain(parts[0], each) for each in value]
        return tuple(found) if origin is tuple else found
    if origin is Literal and value in parts:
        return value
    try:
        if kind is float and type(value) is int:
            return float(value)
    except OverflowError:
        pass
    if type(value) is kind:
        return value
    raise ValueError(f"{reprlib.repr(value)} is no {getattr(kind, '__name__', kind)}")


def _with_fields(kind: Any, value: Mapping[str, Any]) -> Any:
    types = get_type_hints(kind)
    optional = {field.name for field in fields(kind) if field.default is not MISSING}
    if wrong := (value.keys() ^ types.keys()) - (optional - value.keys()):
        raise ValueError(f"{', '.join(map(repr, sorted(wrong)))} is missing or unknown")
    return kind(**{name: from_plain(types[name], each) for name, each in value.items()})
