"""Read pickled uint8 arrays without trusting the file.

CIFAR's python version is pickled, and a pickle may call anything it can name. This reader knows
the five names that a pickled array uses and refuses all others. Even these are not numpy's own:
each resolves to a stand-in below that accepts plain uint8 arrays only, so neither an object array
nor a forged dtype ever reaches numpy.
"""

import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class _ByteType:
    """Stands in for `numpy.dtype`."""

    def __init__(self, code: str | bytes, align: bool = False, copy: bool = False) -> None:
        if code not in ("u1", b"u1"):
            raise ValueError(f"an array has dtype {code!r}, only uint8 is allowed")

    def __setstate__(self, state: tuple[object, ...]) -> None:
        """Byte order and field names: nothing that uint8 needs."""


class _ByteArray:
    """Stands in for `numpy.ndarray` while its parts arrive."""

    values: NDArray[np.uint8]

    def __setstate__(self, state: tuple[int, tuple[int, ...], _ByteType, bool, bytes]) -> None:
        _version, shape, dtype, is_fortran, raw = state
        if not isinstance(dtype, _ByteType) or not isinstance(raw, bytes):
            raise ValueError("an array is not made of plain bytes")
        order = "F" if is_fortran else "C"
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order=order)


def _reconstruct(subtype: type, shape: tuple[int, ...], code: bytes) -> _ByteArray:
    """Stands in for numpy's maker of empty arrays; the contents follow by `__setstate__`."""
    return _ByteArray()


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for `_codecs.encode`, with which Python 3 writes bytes at protocol 2."""
    if encoding != "latin1":
        raise ValueError(f"bytes are encoded as {encoding!r}, only 'latin1' is allowed")
    return text.encode("latin1")


_ALLOWED: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy", "dtype"): _ByteType,
    ("numpy", "ndarray"): _ByteArray,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): _encode,
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Callable[..., object]:
        if (module, name) not in _ALLOWED:
            raise ValueError(f"it asks for {module}.{name}, which data has no use for")
        return _ALLOWED[module, name]


def read_arrays(content: bytes, *, source: Path) -> dict[bytes, object]:
    """The pickled dict, with uint8 arrays as its only non-builtin values.

    Strings of Python 2 come as bytes. `source` names the file in errors.
    """
    try:
        loaded = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(loaded, Mapping):
            raise ValueError(f"it holds a {type(loaded).__name__}, not a dict")
        return {
            key: value.values if isinstance(value, _ByteArray) else value
            for key, value in loaded.items()
        }
    # A damaged pickle raises nearly anything: EOFError, IndexError, TypeError, KeyError, ...
    except Exception as error:
        raise ValueError(f"Refused to read {source}: {error}. Fetch the official file.") from error
