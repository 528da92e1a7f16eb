"""Read pickled uint8 arrays without trusting the file.

CIFAR's python version is pickled, and a pickle may call anything it can name. This reader allows
only the names that a pickled array uses. Even these do not resolve to numpy, but to the stand-ins
below, which accept nothing but plain uint8 arrays. So neither an object array nor a forged dtype
ever reaches numpy.
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
        """Ignore byte order and field names, which uint8 does not need."""


class _ByteArray:
    """Stands in for `numpy.ndarray` while its parts are read."""

    values: NDArray[np.uint8]

    def __setstate__(self, state: tuple[int, tuple[int, ...], _ByteType, bool, bytes]) -> None:
        _version, shape, dtype, is_fortran, raw = state
        if not isinstance(dtype, _ByteType) or not isinstance(raw, bytes):
            raise ValueError("an array is not made of plain bytes")
        order = "F" if is_fortran else "C"
        self.values = np.frombuffer(raw, np.uint8).reshape(shape, order=order)


def _reconstruct(subtype: type, shape: tuple[int, ...], code: bytes) -> _ByteArray:
    """Stands in for numpy's function of that name; `__setstate__` then gets the contents."""
    return _ByteArray()


def _encode(text: str, encoding: str) -> bytes:
    """Stands in for `_codecs.encode`, which Python 3 pickles bytes with at protocol 2."""
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
            raise ValueError(f"it asks for {module}.{name}, which a data file does not need")
        return _ALLOWED[module, name]


def read_arrays(content: bytes, *, source: Path) -> dict[bytes, object]:
    """The pickled dict, whose values are builtins or uint8 arrays.

    Args:
        content: The file. Strings pickled by Python 2 are read as bytes.
        source: The file's name for errors.

    Raises:
        ValueError: The file is damaged, or asks for anything else.
    """
    try:
        loaded = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(loaded, Mapping):
            raise ValueError(f"it holds a {type(loaded).__name__}, not a dict")
        return {
            key: value.values if isinstance(value, _ByteArray) else value
            for key, value in loaded.items()
        }
    # A damaged pickle may raise nearly anything: EOFError, IndexError, TypeError, KeyError, ...
    except Exception as error:
        raise ValueError(f"Refused to read {source}: {error}. Fetch the official file.") from error
