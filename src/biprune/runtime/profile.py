"""Variants of a model side by side: how large each is, and how fast it runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from biprune.core.checks import check_whole
from biprune.core.masks import Masks
from biprune.core.parameters import parameter_names, unwrap
from biprune.runtime.measured import Latency, Profile, Row, footprint, interleaved, medians, ratio
from biprune.runtime.onnx import OnnxModel, export_onnx, has_onnx
from biprune.runtime.sparse import with_csr
from biprune.structured.calls import Inputs, as_inputs, random_inputs
from biprune.training.batches import evaluation_mode
from biprune.training.seeding import forked_rng

WARM_UP = 3
LEAD_IN = 2e-3  # after a variant of another runtime the first calls take up to half as long again


def profile(
    variants: Mapping[str, nn.Module | Path],
    example_input: Inputs,
    *,
    batches: Sequence[int] = (1, 64),
    threads: int | None = None,
    rounds: int = 20,
    seed: int = 0,
) -> Profile:
    """Measure the sizes and the latency of variants of one model.

    Latency is that of a forward on random inputs, in eval and inference mode, on the device of the
    modules. Variants take turns, so that a busy minute hits all of them. Each runs for two
    milliseconds, at least once, before the forward that is timed. The models and torch's number of
    threads are left as they were.

    Args:
        variants: Modules, and ONNX files by their path. The others are compared with the first.
        example_input: What the model takes; inputs are drawn like it.
        batches: Batch sizes.
        threads: Of torch and onnxruntime; by default those that torch is set to.
        rounds: Timed forwards of each variant, after three to warm up.
        seed: Of the inputs.

    Returns:
        A row for each variant, and a verdict in words.

    Raises:
        ValueError: There is nothing to measure.

    Example:
        >>> result = profile({"dense": nn.Linear(4, 2)}, torch.zeros(1, 4), batches=[1], rounds=1)
        >>> result.rows[0].size.parameters
        10
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
        runners = {
            name: variant if isinstance(variant, nn.Module) else OnnxModel(variant, used)
            for name, variant in variants.items()
        }
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


def ticket_variants(
    model: nn.Module,
    masks: Masks,
    small: nn.Module | None,
    example_input: Inputs,
    folder: Path,
) -> tuple[dict[str, nn.Module | Path], list[str]]:
    """Variants of a pruned model, for `profile`.

    Args:
        model: The masked model.
        masks: Its masks.
        small: What `shrink` made of it; None if nothing could be removed.
        example_input: What the model takes.
        folder: Where ONNX files of the dense and of the smallest model go, if the extra is there.

    Returns:
        The variants by name, the dense one first, and notes on what could not be measured.
    """
    dense = filled(model, masks)
    variants: dict[str, nn.Module | Path] = {"dense": dense, "masked": unwrap(model)}
    notes: list[str] = []
    if small is not None:
        variants["small"] = small
    structure = masks.structure
    if structure.has_single_weights and (sparse := with_csr(unwrap(model))):
        try:
            with torch.inference_mode():
                sparse(*as_inputs(example_input))
            variants["csr"] = sparse
            notes.append("csr: linear layers as sparse rows; convolutions have no such kernel.")
        except Exception as error:  # the user's forward may do anything with a layer's weight
            notes.append(f"csr: the model does not run with sparse rows: {error}")
    if not has_onnx():
        notes.append("onnxruntime is not measured: pip install 'biprune[onnx]'")
        return variants, notes
    for name in ("dense", "masked" if small is None else "small"):
        path, module = folder / f"{name}.onnx", variants[name]
        assert isinstance(module, nn.Module)
        try:
            variants[f"onnx {name}"] = export_onnx(module, path, example_input).path
        except ValueError as error:
            notes.append(f"onnx {name}: {error}")
    return variants, notes


@torch.no_grad()
def filled(model: nn.Module, masks: Masks, seed: int = 0) -> nn.Module:
    """A dense copy to time: random numbers where `masks` prune, spread as the kept weights are.

    Some kernels are faster or slower on zeros, so the masked model cannot stand in for the dense.
    """
    dense = copy.deepcopy(unwrap(model))
    parameters = parameter_names(dense)
    with forked_rng(()):
        torch.manual_seed(seed)
        for name, mask in masks.items():
            weight = parameters[name]
            kept = mask.to(weight.device)
            spread = float(weight[kept].std()) if int(kept.sum()) > 1 else 0.0
            weight.copy_(torch.where(kept, weight, torch.randn_like(weight) * (spread or 0.01)))
    return dense.eval()
