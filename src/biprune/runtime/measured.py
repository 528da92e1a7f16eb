"""How large a model is and how long it runs, measured, and the same in plain sentences."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Literal

import torch
from torch import Tensor, nn

from biprune.core.parameters import parameter_names, unwrap
from biprune.files.artifact import pack, to_bytes
from biprune.runtime.onnx import require_onnx
from biprune.structured.calls import Inputs
from biprune.structured.macs import total_macs
from biprune.training.checkpoint import only_tensors


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    warm_up: int = 1,
    lead_in: float = 0.0,
) -> dict[str, list[float]]:
    """Seconds of each candidate in each of the `rounds`.

    Every candidate runs once a round, so that a slow minute of the machine hits them all, and each
    round starts with another.

    Args:
        candidates: What to time, by name.
        rounds: How often each is timed.
        warm_up: Rounds before these, which do not count.
        lead_in: Seconds for which each candidate is called right before it is timed. Otherwise most
            would pay for what the candidate before them left in the caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    names = list(candidates)
    for number in range(-warm_up, rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            run = candidates[name]
            ready = time.perf_counter() + lead_in
            while time.perf_counter() < ready:
                run()
            started = time.perf_counter()
            run()
            if number >= 0:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each candidate."""
    return {name: statistics.median(values) for name, values in seconds.items()}


def ratio(seconds: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """The median over rounds of the ratio within a round, which a slow minute does not change."""
    pairs = zip(seconds[name], seconds[base], strict=True)
    return statistics.median(own / other for own, other in pairs)


@dataclass(frozen=True)
class Footprint:
    """Sizes of one variant; `macs` is None where they cannot be counted.

    `bytes` is the size of an ONNX file, or of the state as safetensors: as it is, or without its
    zeros as a saved ticket has it, whichever is smaller.
    """

    parameters: int
    nonzero: int
    macs: int | None
    bytes: int


def footprint(variant: nn.Module | Path, example_input: Inputs) -> Footprint:
    """The sizes of a module or of an ONNX file. Tied parameters count once."""
    if isinstance(variant, Path):
        return _of_file(variant)
    model = unwrap(variant)
    parameters = parameter_names(model)
    is_sparse = any(p.layout != torch.strided for p in parameters.values())
    return Footprint(
        parameters=sum(p.numel() for p in parameters.values()),
        nonzero=sum(int(torch.count_nonzero(_values(p))) for p in parameters.values()),
        macs=None if is_sparse else total_macs(model, example_input),
        bytes=_sparse_bytes(model) if is_sparse else _bytes(model),
    )


def _of_file(path: Path) -> Footprint:
    require_onnx()
    import onnx
    from onnx.numpy_helper import to_array

    weights = [to_array(tensor) for tensor in onnx.load(path).graph.initializer]
    floats = [torch.tensor(array) for array in weights if array.dtype.kind == "f"]
    return Footprint(
        parameters=sum(tensor.numel() for tensor in floats),
        nonzero=sum(int(torch.count_nonzero(tensor)) for tensor in floats),
        macs=None,
        bytes=path.stat().st_size,
    )


def _bytes(model: nn.Module) -> int:
    state = only_tensors(model.state_dict())
    zeros = {name: p.detach() != 0 for name, p in parameter_names(model).items()}
    masks = {name: kept for name, kept in zeros.items() if name in state and not kept.all()}
    return min(len(to_bytes(state)), len(to_bytes(pack(state, masks))))


def _sparse_bytes(model: nn.Module) -> int:
    """The state, with each sparse tensor in three parts: starts of rows, columns, values."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in only_tensors(model.state_dict()).items():
        if tensor.layout == torch.strided:
            tensors[name] = tensor
        else:
            parts = tensor.crow_indices(), tensor.col_indices(), tensor.values()
            tensors |= {f"{name}.{number}": part for number, part in enumerate(parts)}
    return len(to_bytes(tensors))


def _values(parameter: Tensor) -> Tensor:
    return parameter if parameter.layout == torch.strided else parameter.values()


NOTICEABLE = 1.1  # a speed-up below this is not worth a file of its own


@dataclass(frozen=True)
class Latency:
    """Milliseconds of one forward: the median, and what nine of ten forwards stay below.

    `speedup` says how many times as fast as the first variant it is: the median of the ratios
    within a round.
    """

    median: float
    p90: float
    speedup: float


@dataclass(frozen=True)
class Row:
    """One variant; `latency` by batch size."""

    name: str
    runtime: Literal["torch", "onnxruntime"]
    size: Footprint
    latency: dict[int, Latency]

    @property
    def speedups(self) -> dict[int, float]:
        """How many times as fast as the first variant, by batch size."""
        return {batch: each.speedup for batch, each in self.latency.items()}


@dataclass(frozen=True)
class Profile:
    """What `profile` measured; the others are compared with the first row."""

    rows: list[Row]
    threads: int
    rounds: int

    @property
    def verdict(self) -> str:
        """What the figures come to, in words, also when nothing was gained.

        What another runtime gains is kept apart from what pruning gains.
        """
        base, *others = self.rows
        if not others:
            return f"{base.name} alone was measured, so there is nothing to compare it with."
        masked = [row for row in others if _is_masked(row, base)]
        sentences = [_of_zeros(row, base) for row in masked]
        smaller = [row for row in others if row.runtime == base.runtime and row not in masked]
        if smaller:
            sentences.append(_of_fastest(smaller, base))
        exported = [row for row in others if row.runtime != base.runtime]
        if exported:
            sentences += _of_runtime(exported, base)
        return " ".join(sentences)


def _is_masked(row: Row, base: Row) -> bool:
    """Whether a variant has the zeros but not the smaller shapes, in dense tensors."""
    same_work = row.size.macs is not None and row.size.macs == base.size.macs
    return same_work and row.size.nonzero < base.size.nonzero


def _of_zeros(row: Row, base: Row) -> str:
    speed = _speed(row.speedups, base)
    if _is_noticeable(row):  # the figure contradicts the usual explanation
        return f"The zeros of {row.name} are in dense tensors, and it is {speed}."
    return (
        "Masked weights are zeros in dense tensors: no kernel here skips them, and "
        f"{row.name} is {speed}."
    )


def _of_fastest(rows: Sequence[Row], base: Row) -> str:
    best = max(rows, key=_overall)
    speed = _speed(best.speedups, base)
    if not any(map(_is_noticeable, rows)):
        return f"There is no speed-up worth the name: {best.name} is {speed}."
    return f"The variant {best.name} is {speed}."


def _of_runtime(rows: Sequence[Row], base: Row) -> list[str]:
    """What the runtime gains by itself, if its dense model was measured, and what pruning adds."""
    first, *others = rows
    if first.size.nonzero < first.size.parameters:
        return [f"The variant {row.name} is {_speed(row.speedups, base)}." for row in rows]
    own = f"Without any pruning {first.runtime} is {_speed(first.speedups, base)}"
    if not others:
        return [f"{own}."]
    best = max(others, key=_overall)
    added = {b: first.latency[b].median / each.median for b, each in best.latency.items()}
    return [f"{own}; there {best.name} is {_speed(added, first)}."]


def _is_noticeable(row: Row) -> bool:
    """Whether the speed-up at some batch size is worth mentioning."""
    return max(row.speedups.values()) >= NOTICEABLE


def _overall(row: Row) -> float:
    return geometric_mean(row.speedups.values())


def _speed(speedups: Mapping[int, float], base: Row) -> str:
    """Such as: 0.98 times as fast as dense at batch 1, 1.02 times at batch 64."""
    (batch, first), *rest = speedups.items()
    text = f"{first:.2f} times as fast as {base.name} at batch {batch}"
    return ", ".join([text, *(f"{speedup:.2f} times at batch {b}" for b, speedup in rest)])
