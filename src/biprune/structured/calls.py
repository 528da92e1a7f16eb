"""How a model is called on an example, and which tensors of what it returns are its output.

An example is a tensor, a tuple of arguments, or a mapping of keyword arguments. Caches and other
objects that a model hands back beside its tensors are no output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

from torch import Tensor, nn

from biprune.structured.inputs import Inputs

_CACHES = frozenset(("past_key_values", "cache_params", "past_buckets_states", "mems"))


class ByPosition(nn.Module):
    """A model as a function of a tuple of tensors to the tuple of its output tensors.

    `names` are the keywords that the tensors are passed by; without any they go by position.
    """

    def __init__(self, model: nn.Module, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.note: Callable[[object], None] = lambda returned: None

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The output tensors; a ValueError if there are none."""
        returned = self.returned(*tensors)
        self.note(returned)
        found = tuple(output_tensors(returned))
        if not found:
            raise ValueError("The model returns no tensors, so that nothing can be compared.")
        return found

    def returned(self, *tensors: Tensor) -> Any:
        """What the model itself returns."""
        if self.names:
            return self.model(**dict(zip(self.names, tensors, strict=True)))
        return self.model(*tensors)


def by_position(model: nn.Module, example_input: Inputs) -> tuple[ByPosition, tuple[Tensor, ...]]:
    """The model as a function of tensors, and those of the example.

    Raises:
        ValueError: The example is no batch: the first tensor holds no samples.
    """
    names: tuple[str, ...] = ()
    if isinstance(example_input, Tensor):
        tensors: tuple[Any, ...] = (example_input,)
    elif isinstance(example_input, Mapping):
        names, tensors = tuple(example_input), tuple(example_input.values())
    else:
        tensors = tuple(example_input) if isinstance(example_input, Iterable) else (example_input,)
    whole = bool(tensors) and all(isinstance(tensor, Tensor) for tensor in tensors)
    if whole and tensors[0].ndim and len(tensors[0]):
        return ByPosition(model, names), tensors
    shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in tensors]
    raise ValueError(
        "`example_input` must be a batch of samples along the first dimension, or a tuple or a "
        f"mapping of tensors that begins with one, got {', '.join(map(str, shapes)) or 'nothing'}."
    )


def output_tensors(returned: object) -> Iterator[Tensor]:
    """The tensors in what a model returned, in order, but for caches; of an object its `logits`."""
    if isinstance(returned, Tensor):
        yield returned
    elif isinstance(returned, Mapping):
        for key, value in returned.items():
            if key not in _CACHES:
                yield from output_tensors(value)
    elif isinstance(returned, (tuple, list)):
        for value in returned:
            yield from output_tensors(value)
    elif isinstance(logits := getattr(returned, "logits", None), Tensor):
        yield logits


def template(returned: object, number: Iterator[int] | None = None) -> Any:
    """The nesting of what a model returned, with a number in place of each output tensor."""
    number = count() if number is None else number
    if isinstance(returned, Tensor):
        return next(number)
    if isinstance(returned, Mapping):
        kept = {key: value for key, value in returned.items() if key not in _CACHES}
        return {str(key): template(value, number) for key, value in kept.items()}
    if isinstance(returned, (tuple, list)):
        return [template(value, number) for value in returned]
    if isinstance(getattr(returned, "logits", None), Tensor):
        return {"logits": next(number)}
    return None


class Named(dict[str, Any]):
    """What a model returned by name: by key, by attribute, or by position."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the model returns no {name!r}") from None

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else [*self.values()][key]


def filled(nesting: Any, tensors: Sequence[Tensor]) -> Any:
    """The nesting of `template` with tensors in it."""
    if isinstance(nesting, int):
        return tensors[nesting]
    if isinstance(nesting, dict):
        parts = {key: filled(value, tensors) for key, value in nesting.items()}
        return Named({key: part for key, part in parts.items() if part is not None})
    if isinstance(nesting, list):
        return tuple(filled(value, tensors) for value in nesting)
    return None
