"""How a model is called on an example, and the tensors that it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from biprune.core.files import first_line
from biprune.training.batches import evaluation_mode
from biprune.training.seeding import forked_rng

# What a unit of attention is: a head with the queries that share its key and value, one head of
# queries, or index d of all heads.
Attention = Literal["heads", "queries", "width"]
Draw = Literal["normal", "range", "rows"]
Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]


def check_attention(attention: object) -> None:
    """Refuse what is not a unit of attention."""
    if attention not in get_args(Attention):
        allowed = ", ".join(map(repr, get_args(Attention)))
        raise ValueError(f"`attention` must be one of {allowed}, got {attention!r}.")


def as_inputs(example_input: Inputs) -> tuple[Tensor, ...]:
    """The arguments of a forward; the first must hold samples along its first dimension.

    Raises:
        ValueError: It does not, or the example is a mapping.
    """
    if isinstance(example_input, Mapping):
        raise ValueError(
            "`example_input` must be a tensor or a tuple of them here, not a mapping of keyword "
            "arguments: pass the arguments in their order."
        )
    inputs = (example_input,) if isinstance(example_input, Tensor) else tuple(example_input)
    if not (inputs and _holds_samples(inputs[0])):
        raise _no_batch(inputs, "a tuple that begins with one")
    return inputs


def _holds_samples(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and tensor.ndim > 0 and len(tensor) > 0


def _no_batch(inputs: Sequence[object], allowed: str) -> ValueError:
    shapes = [str(tuple(i.shape)) if isinstance(i, Tensor) else type(i).__name__ for i in inputs]
    return ValueError(
        f"`example_input` must be a batch of samples along the first dimension, or {allowed}, got "
        f"{', '.join(shapes) or 'nothing'}."
    )


def batched(inputs: tuple[Tensor, ...]) -> list[bool]:
    """Which of the arguments hold samples: those that are as long as the first."""
    return [tensor.ndim > 0 and len(tensor) == len(inputs[0]) for tensor in inputs]


def random_inputs(
    inputs: tuple[Tensor, ...], size: int, seed: int, draw: Draw = "normal"
) -> tuple[Tensor, ...]:
    """`size` samples like those of `inputs`.

    Floats are "normal" numbers, or uniform within the "range" of the argument, or "rows" of it.
    Integers and booleans are always rows. Rows are the same of all arguments: they may belong
    together, as tokens and their mask do.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(inputs[0]), (size,), generator=generator)

    def drawn(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or draw == "rows":
            return tensor[rows.to(tensor.device)]
        shape = (size, *tensor.shape[1:])
        if draw == "normal":
            return torch.randn(shape, generator=generator, dtype=tensor.dtype).to(tensor.device)
        share = torch.rand(shape, generator=generator, dtype=tensor.dtype).to(tensor.device)
        return torch.lerp(tensor.min(), tensor.max(), share)

    pairs = zip(inputs, batched(inputs), strict=True)
    return tuple(drawn(tensor) if holds_samples else tensor for tensor, holds_samples in pairs)


_CACHES = frozenset(("past_key_values", "cache_params", "past_buckets_states", "mems"))
_NO_TENSORS = "The model returns no tensors, so that nothing can be compared."


class ByPosition(nn.Module):
    """A model as a function of a tuple of tensors to the tuple of its output tensors.

    `names` are the keywords that the tensors are passed by; without any they go by position.
    `note` is called with what the model itself returns.
    """

    def __init__(self, model: nn.Module, names: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.model = model
        self.names = names
        self.note: Callable[[object], object] = lambda returned: None

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The output tensors; a ValueError if there are none."""
        returned = self.returned(*tensors)
        self.note(returned)
        found = tuple(output_tensors(returned))
        if not found:
            raise ValueError(_NO_TENSORS)
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
    tensors: tuple[Any, ...] = (example_input,)
    if isinstance(example_input, Mapping):
        names, tensors = tuple(example_input), tuple(example_input.values())
    elif isinstance(example_input, Iterable) and not isinstance(example_input, Tensor):
        tensors = tuple(example_input)
    if not all(isinstance(tensor, Tensor) for tensor in tensors) or not (
        tensors and _holds_samples(tensors[0])
    ):
        raise _no_batch(tensors, "a tuple or a mapping of tensors that begins with one")
    return ByPosition(model, names), tensors


def template(returned: object, tensors: list[Tensor] | None = None) -> Any:
    """The nesting of what a model returned, with a number in place of each output tensor.

    Caches are no outputs, and of an object only its `logits` are one. The tensors themselves are
    appended to `tensors`.
    """
    tensors = [] if tensors is None else tensors
    if isinstance(returned, Tensor):
        tensors.append(returned)
        return len(tensors) - 1
    if isinstance(returned, Mapping):
        kept = {key: value for key, value in returned.items() if key not in _CACHES}
        return {str(key): template(value, tensors) for key, value in kept.items()}
    if isinstance(returned, (tuple, list)):
        return [template(value, tensors) for value in returned]
    if isinstance(logits := getattr(returned, "logits", None), Tensor):
        return {"logits": template(logits, tensors)}
    return None


def output_tensors(returned: object) -> list[Tensor]:
    """The output tensors in what a model returned, in order; see `template`."""
    found: list[Tensor] = []
    template(returned, found)
    return found


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


@torch.no_grad()
def outputs(model: nn.Module, inputs: tuple[Tensor, ...], seed: int) -> list[Tensor]:
    """The tensors that a forward returns; whatever it draws is drawn from `seed`."""
    with forked_rng(()):
        torch.manual_seed(seed)
        found = output_tensors(model(*inputs))
    if not found:
        raise ValueError(_NO_TENSORS)
    return found


PASS_ANOTHER = (
    "Pass an `example_input` that it runs on, with samples along the first dimension: a batch, or "
    "a tuple of arguments."
)


def check_runs(
    model: nn.Module, inputs: tuple[Tensor, ...], called: str = "", advice: str = PASS_ANOTHER
) -> None:
    """Refuse inputs that the model does not run on, `called` what the user knows them by."""
    try:
        with evaluation_mode(model):
            outputs(model, inputs, seed=0)
    except Exception as error:  # whatever a forward of the user's raises
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        raise ValueError(
            f"The model does not run on {called or f'`example_input` of shape {shapes}'} "
            f"({type(error).__name__}: {first_line(error)}). {advice}"
        ) from error


def inputs_to_compare(
    model: nn.Module, inputs: tuple[Tensor, ...], wanted: int, seed: int, scale: float = 1.0
) -> tuple[Tensor, ...]:
    """Random samples like those of `inputs` for which the outputs of `model` are finite.

    `wanted` of them, or as many as in `inputs` if the model takes no other number. They are normal,
    times `scale`; but a model may take the logarithm of what it gets, and then they are within the
    range of `inputs`, or rows of it; see `random_inputs`. If none will do, `inputs` as they are.
    """
    for size in dict.fromkeys((wanted, len(inputs[0]))):
        for draw in get_args(Draw):
            try:
                drawn = random_inputs(inputs, size, seed, draw)
                if draw == "normal":
                    drawn = tuple(t * scale if t.is_floating_point() else t for t in drawn)
                found = outputs(model, drawn, seed)
            except Exception:  # whatever a forward of the user's raises
                continue
            if are_finite(found):
                return drawn
    return inputs


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number of the tensors is finite."""
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def difference(expected: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    """The largest difference, in parts of the largest number in its tensor.

    Infinite if shapes differ, nan if a number is nan.
    """
    if [tensor.shape for tensor in expected] != [tensor.shape for tensor in found]:
        return math.inf
    errors = [0.0]
    for one, other in zip(expected, found, strict=True):
        if one.numel():
            one, other = one.double(), other.double()
            scale = torch.maximum(one.abs().max(), other.abs().max())
            errors.append(float((one - other).abs().max() / torch.where(scale == 0, 1.0, scale)))
    return math.nan if any(map(math.isnan, errors)) else max(errors)
