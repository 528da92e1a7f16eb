"""Data classes as JSON and back, in documents that carry their own hash.

The hash shows that a bit has changed before anything is made of the content. It cannot show who
wrote a file, so readers still treat what they read as a stranger's.
"""

from __future__ import annotations

import hashlib
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from biprune.core.files import Content, printable, read_file, write_bytes


def from_plain(kind: Any, value: Any) -> Any:
    """What became `value` in JSON: a dataclass, a collection, a number or a text.

    Args:
        kind: Its type, such as `Mapping[str, int]`.
        value: What `json` read.

    Raises:
        ValueError: The value is not of that type.

    Example:
        >>> from_plain(tuple[float, ...], [1, 0.5])
        (1.0, 0.5)
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
    raise ValueError(f"{reprlib.repr(value)} is not of type {getattr(kind, '__name__', kind)}")


def _with_fields(kind: Any, value: Mapping[str, Any]) -> Any:
    types = get_type_hints(kind)
    optional = {field.name for field in fields(kind) if field.default is not MISSING}
    if wrong := (value.keys() ^ types.keys()) - (optional - value.keys()):
        raise ValueError(f"{', '.join(map(repr, sorted(wrong)))} is missing or unknown")
    return kind(**{name: from_plain(types[name], each) for name, each in value.items()})


DOCUMENT = b'{\n "seal": "%s",\n'  # how a document begins; the hash is of all that follows
LARGEST = 1 << 28  # bytes of JSON
DEEPEST = 32  # lists and objects within one another

_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}  # JSON lacks them


def seal(head: bytes, content: Content) -> bytes:
    """The `head` of a file that holds `content`, with the hash in place of %s."""
    return head % hashlib.sha256(content).hexdigest().encode()


def unseal(head: bytes, data: bytes, path: Path | str) -> memoryview:
    """What follows the head in the `data` of a file.

    Raises:
        ValueError: It is not what was sealed.
    """
    start, rest = head.partition(b"%s")[0], memoryview(data)[len(head) - 2 + 64 :]
    if not data.startswith(start):
        raise ValueError(
            f"{str(path)!r} is damaged, or was not written by this version of biprune: it does not "
            "begin with a hash of its contents."
        )
    if not data.startswith(seal(head, rest)):
        raise ValueError(f"{str(path)!r} is damaged: its contents do not match the hash in it.")
    return rest


def write_document(path: Path | str, content: Mapping[str, Any]) -> None:
    """Write `content` as JSON with a seal; numbers that JSON lacks are written as words."""
    text = json.dumps(finite(content), indent=1, allow_nan=False) + "\n"
    rest = text.removeprefix("{\n").encode()
    write_bytes(path, seal(DOCUMENT, rest), rest)


def read_document(path: Path | str) -> dict[str, Any]:
    """The content that `write_document` wrote, or a ValueError that names the file."""
    rest = unseal(DOCUMENT, read_file(path, at_most=LARGEST), path)
    try:
        content = json.loads(b"{" + rest)
    except (ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else printable(str(error))
        raise ValueError(f"{str(path)!r} cannot be read as JSON: {reason}.") from None
    if not _is_shallow(content):
        raise ValueError(f"{str(path)!r} cannot be read as JSON: nested too deep.")
    return _numbers(content)


def finite(content: Any) -> Any:
    """`content` for JSON, with words for infinity and NaN, which JSON cannot write."""
    if isinstance(content, float) and not math.isfinite(content):
        return "NaN" if math.isnan(content) else "Infinity" if content > 0 else "-Infinity"
    if isinstance(content, Mapping):
        return {key: finite(part) for key, part in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(part) for part in content]
    return content


def _numbers(content: Any) -> Any:
    """The words of `finite` as numbers again."""
    if isinstance(content, str):
        return _NUMBERS.get(content, content)
    if isinstance(content, dict):
        return {key: _numbers(part) for key, part in content.items()}
    if isinstance(content, list):
        return [_numbers(part) for part in content]
    return content


def _is_shallow(content: Any) -> bool:
    level = [content]
    for _ in range(DEEPEST):
        parts = (each.values() if isinstance(each, dict) else each for each in level)
        level = [part for inner in parts for part in inner if isinstance(part, (dict, list))]
        if not level:
            return True
    return False
