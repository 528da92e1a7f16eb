"""A method from its name and `--set KEY=VALUE`, read by the types of the method's fields."""

from __future__ import annotations

from collections.abc import Sequence
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from biprune.cli.options import split_pairs

if TYPE_CHECKING:
    from biprune.methods import Method

_BOOLEANS = {"true": True, "false": False}


def build_method(
    name: str, texts: Sequence[str] | None, epochs: int | None = None, *, option: str = "--set"
) -> Method:
    """The method `name` with the settings of `option`, over `epochs` if given."""
    from biprune.methods import METHODS, get_method

    hints = get_type_hints(METHODS[name]) if name in METHODS else {}
    pairs = split_pairs(option, texts)
    # A setting that the method does not have is left as text: `get_method` refuses it by name.
    settings = {key: _convert(key, text, hints.get(key, str)) for key, text in pairs.items()}
    return get_method(name, settings, epochs)


def _convert(key: str, text: str, hint: Any) -> object:
    """`text` as a value of the type `hint`."""
    alternatives = get_args(hint)
    if NoneType in alternatives:
        if text.lower() == "none":
            return None
        (hint,) = (kind for kind in alternatives if kind is not NoneType)
    if get_origin(hint) is Literal:
        if text not in get_args(hint):
            raise ValueError(f"`{key}` must be one of {', '.join(get_args(hint))}, got {text!r}.")
        return text
    if hint is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"`{key}` must be true or false, got {text!r}.")
        return _BOOLEANS[text.lower()]
    if get_origin(hint) is tuple:
        return tuple(_convert(key, part.strip(), get_args(hint)[0]) for part in text.split(","))
    if hint is str:
        return text
    if hint not in (int, float):
        raise ValueError(f"`{key}` cannot be set from the command line; use it from Python.")
    try:
        return hint(text)
    except ValueError:
        kind = "an integer" if hint is int else "a number"
        raise ValueError(f"`{key}` must be {kind}, got {text!r}.") from None
