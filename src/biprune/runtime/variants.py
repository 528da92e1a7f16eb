"""The variants of a pruned model that are worth a comparison."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from torch import nn

from biprune.core.masks import Masks
from biprune.core.parameters import parameter_names, unwrap
from biprune.runtime.csr import with_csr
from biprune.runtime.onnx import export_onnx
from biprune.runtime.runtime import has_onnx
from biprune.structured.inputs import Inputs, as_inputs
from biprune.training.seeding import forked_rng

Variants = dict[str, nn.Module | Path]


def ticket_variants(
    model: nn.Module,
    masks: Masks,
    small: nn.Module | None,
    example_input: Inputs,
    folder: Path,
) -> tuple[Variants, list[str]]:
    """Variants of the masked `model` by name, the dense one first, and what is to be said of them.

    `small` is what `shrink` made of it, None if nothing could be removed. ONNX files of the dense
    and of the smallest model are written into `folder` where the extra is installed.
    """
    dense = filled(model, masks)
    variants: Variants = {"dense": dense, "masked": unwrap(model)}
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
    """A copy without zeros where `masks` prunes, in the spread of what is kept: for its speed only.

    Some kernels take another time on zeros, so the masked model does not stand in for the dense.
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
