"""Variants of a model side by side: what each takes, and how long each runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from biprune.core.checks import check_whole
from biprune.runtime.footprint import footprint
from biprune.runtime.measured import Latency, Profile, Row
from biprune.runtime.runtime import OnnxModel
from biprune.runtime.timing import interleaved, medians, ratio
from biprune.structured.inputs import Inputs, as_inputs, random_inputs
from biprune.training.evaluation import evaluation_mode

WARM_UP = 3
LEAD_IN = 2e-3  # behind a variant of another runtime the first calls are slower by up to a half


def profile(
    variants: Mapping[str, nn.Module | Path],
    example_input: Inputs,
    *,
    batches: Sequence[int] = (1, 64),
    threads: int | None = None,
    rounds: int = 20,
    seed: int = 0,
) -> Profile:
    """Measure variants of one model: modules, and ONNX files by their path.

    Latency is that of a forward on random inputs like `example_input`, in eval and inference mode,
    on the device of the modules. Variants take turns, so that a busy minute hits all of them, each
    with forwards for two milliseconds, or one, before the one that is timed; `rounds` count after
    three to warm up. `threads` are those of torch and onnxruntime, by default as torch is set;
    torch's setting and the models are as before afterwards.
    """
    check_whole("rounds", rounds, at_least=1)
    for batch in batches:
        check_whole("batches", batch, at_least=1)
    if not variants or not batches:
        raise ValueError("`variants` and `batches` must not be empty: there is nothing to measure.")
    if threads is not None:
        check_whole("threads", threads, at_least=1)
    inputs = as_inputs(example_input)
    modules = [variant for variant in variants.values() if isinstance(variant, nn.Module)]
    with _num_threads(threads) as used, ExitStack() as modes:
        for module in modules:
            modes.enter_context(evaluation_mode(module))
        runners = {name: _runner(variant, used) for name, variant in variants.items()}
        timed = {batch: _latencies(runners, inputs, batch, rounds, seed) for batch in batches}
        rows = [
            Row(
                name=name,
                runtime="torch" if isinstance(variant, nn.Module) else "onnxruntime",
                size=footprint(variant, inputs),
                latency={batch: each[name] for batch, each in timed.items()},
            )
            for name, variant in variants.items()
        ]
    return Profile(rows, used, rounds)


def _runner(variant: nn.Module | Path, threads: int) -> Callable[..., object]:
    return variant if isinstance(variant, nn.Module) else OnnxModel(variant, threads)


@torch.inference_mode()
def _latencies(
    runners: Mapping[str, Callable[..., object]],
    inputs: tuple[Tensor, ...],
    batch: int,
    rounds: int,
    seed: int,
) -> dict[str, Latency]:
    drawn = random_inputs(inputs, batch, seed)

    def forward(run: Callable[..., object]) -> Callable[[], None]:
        def timed() -> None:
            run(*drawn)
            if drawn[0].is_cuda:  # kernels are only queued when the call returns
                torch.cuda.synchronize(drawn[0].device)

        return timed

    candidates = {name: forward(run) for name, run in runners.items()}
    seconds = interleaved(candidates, rounds, warm_up=WARM_UP, lead_in=LEAD_IN)
    base = next(iter(runners))
    return {
        name: Latency(
            median=1e3 * middle,
            p90=1e3 * float(np.percentile(seconds[name], 90)),
            speedup=ratio(seconds, base, name),
        )
        for name, middle in medians(seconds).items()
    }


@contextmanager
def _num_threads(threads: int | None) -> Iterator[int]:
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)
