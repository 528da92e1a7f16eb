"""Ticket: a pruned model with its measurements, saved and loaded without pickle."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from biprune.core.groups import Groups
from biprune.core.masks import Masks
from biprune.core.parameters import num_weights, own_name, parameter_names, unwrap
from biprune.core.structure import get_structure
from biprune.files.artifact import (
    check_fields,
    pack,
    prefixed,
    read_artifact,
    saved_cost,
    under,
    unpack_masks,
    unpack_state,
    whole,
    write_artifact,
)
from biprune.files.rebuilding import fill_, fitting
from biprune.runtime.sparse import to_semi_structured
from biprune.structured.calls import Inputs
from biprune.training.batches import device_of
from biprune.training.checkpoint import State, only_tensors
from biprune.training.loop import Cost
from biprune.training.setup import Record

if TYPE_CHECKING:
    from biprune.runtime.onnx import OnnxCheck

LARGEST_INPUT = 1 << 22  # most numbers in a sample that a file may ask to draw
# The fields of a ticket that its file holds unchanged, and then all that the file holds.
PLAIN_FIELDS = {
    "accuracy": (int, float, NoneType),
    "history": list,
    "method": str,
    "settings": dict,
    "sparsity": (int, float),
    "seed": int,
    "data": (dict, NoneType),
    "chosen": dict,
    "dense_accuracy": (int, float, NoneType),
    "input_shape": (list, NoneType),
    "input_dtype": str,
    "left_out": dict,
}
TICKET_FIELDS = {
    **PLAIN_FIELDS,
    "model": (dict, NoneType),
    "layers": dict,
    "structure": str,
    "scope": str,
    "groups": (dict, NoneType),
    "cost": dict,
    "num_weights": int,
    "rounds": list,
}


@dataclass(repr=False)
class Ticket:
    """A pruned model with its masks and measurements; `prune` returns it.

    Attributes:
        model: An ordinary module in eval mode; its pruned weights are exactly zero.
        accuracy: What `evaluate` returned, or the test accuracy in percent; None if unknown.
        history: One record per epoch, or about a hundred per run with `attach`.
        data: How the dataset was loaded.
        chosen: Further options of the request, such as `include` and `exclude`.
        input_shape: The shape of one sample, if the model takes a single floating-point tensor.
        left_out: Weights that the structure could not prune, with the reason.
        rounds: The tickets of an iterative method's earlier rounds.
    """

    model: nn.Module
    masks: Masks
    accuracy: float | None
    cost: Cost
    history: list[Record] = field(repr=False)
    method: str
    settings: dict[str, Any] = field(repr=False)
    sparsity: float
    seed: int
    data: dict[str, Any] | None = field(default=None, repr=False)
    chosen: dict[str, Any] = field(default_factory=dict, repr=False)
    dense_accuracy: float | None = None
    input_shape: list[int] | None = field(default=None, repr=False)
    input_dtype: str = field(default="float32", repr=False)
    left_out: dict[str, str] = field(default_factory=dict, repr=False)
    rounds: list[Ticket] = field(default_factory=list, repr=False)

    def __repr__(self) -> str:
        """Name the method, and how many of how many weights are pruned."""
        masks, whole = self.masks, num_weights(self.model)
        offered = sum(mask.numel() for mask in masks.values())
        accuracy = "" if self.accuracy is None else f", accuracy {self.accuracy:.2f}"
        return (
            f"Ticket({self.method}, {masks.structure.name}: {100 * masks.weight_sparsity:.4g} % of "
            f"{offered:,} of {whole:,} weights pruned{accuracy})"
        )

    def example_input(self, batch: int = 1) -> Tensor:
        """Draw `batch` samples from a normal distribution, the same ones each time.

        Raises:
            ValueError: The ticket does not know the shape of a sample, or it is very large.
        """
        if self.input_shape is None:
            raise ValueError(
                "The ticket does not know what its model takes, or it is not a single tensor of "
                "floating-point numbers: pass `example_input`."
            )
        if math.prod(self.input_shape) > LARGEST_INPUT:
            raise ValueError(
                f"The ticket says that its model takes samples of {self.input_shape}, which is too "
                "large to draw without being asked. If it is right, pass `example_input`, or "
                "`--input-shape` on the command line."
            )
        generator = torch.Generator().manual_seed(self.seed)
        inputs = torch.randn(batch, *self.input_shape, generator=generator)
        return inputs.to(device_of(self.model), getattr(torch, self.input_dtype))

    def shrink(self, example_input: Inputs | None = None) -> nn.Module:
        """Return a physically smaller module with the same outputs, and its `certificate`.

        With structure "group", all pruned units are removed. With others, whatever can go without
        changing the outputs is removed; the certificate says how much.

        Raises:
            ValueError: The outputs differ; the message names the layer.
        """
        from biprune.structured.grouping import Coupling
        from biprune.structured.shrink import shrink

        inputs = self.example_input(2) if example_input is None else example_input
        structure, model = self.masks.structure, unwrap(self.model)
        coupled = structure.coupled
        found = Coupling(coupled.groups, self.left_out) if coupled else None
        return shrink(model, found, inputs)

    def to_semi_structured(self) -> nn.Module:
        """Compress the weights of a 2:4 ticket's model for the sparse kernels of NVIDIA GPUs.

        Raises:
            ValueError: The ticket is not 2:4, or the GPU has a compute capability below 8.0.
        """
        return to_semi_structured(self.model, self.masks)

    def export(
        self,
        path: Path | str,
        *,
        example_input: Inputs | None = None,
        shrink: bool | None = None,
    ) -> OnnxCheck:
        """Write the model as ONNX and check it in onnxruntime (extra `onnx`).

        Args:
            path: The file to write.
            example_input: What the model takes; by default `self.example_input(2)`.
            shrink: Whether to export the small model; by default only for structure "group".
        """
        from biprune.runtime.onnx import export_onnx

        inputs = self.example_input(2) if example_input is None else example_input
        if shrink is None:
            shrink = self.masks.structure.spans_tensors
        return export_onnx(self.shrink(inputs) if shrink else unwrap(self.model), path, inputs)

    def save(self, folder: Path | str) -> Path:
        """Write the ticket and its rounds into `folder`, as safetensors and JSON.

        A pruned weight takes one bit. Module state that is not a tensor (`get_extra_state`) is not
        written.
        """
        metadata, tensors = self._packed()
        return write_artifact(folder, "ticket", metadata, tensors)

    def _packed(self) -> tuple[dict[str, Any], State]:
        rounds = [earlier._packed() for earlier in self.rounds]
        structure = self.masks.structure
        metadata = {
            "model": getattr(self.model, "created_by", None),
            "layers": {name: list(mask.shape) for name, mask in self.masks.items()},
            "structure": structure.name,
            "scope": structure.scope,
            "groups": structure.coupled and structure.coupled.to_json(),
            "cost": asdict(self.cost),
            "num_weights": num_weights(self.model),
            **{name: getattr(self, name) for name in PLAIN_FIELDS},
            "rounds": [metadata for metadata, _ in rounds],
        }
        check_masks(self.model, self.masks)
        state = only_tensors(unwrap(self.model).state_dict())
        tensors = pack({own_name(name): tensor for name, tensor in state.items()}, self.masks)
        for number, (_, earlier) in enumerate(rounds, start=1):
            tensors |= prefixed(f"round-{number}", earlier)
        return metadata, tensors


def load_ticket(folder: Path | str, model: nn.Module | None = None) -> Ticket:
    """Read a ticket back; weights and masks are bit for bit as saved.

    Args:
        folder: Where `Ticket.save` wrote it.
        model: A model of the same class, of which a copy is filled. Models of our registry are
            rebuilt without it.

    Raises:
        ValueError: The folder holds no ticket, it is damaged, or it does not fit the model.
    """
    metadata, tensors = read_artifact(folder, "ticket")
    return _unpacked(metadata, tensors, folder, model)


def _unpacked(
    metadata: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    folder: Path | str,
    model: nn.Module | None,
) -> Ticket:
    check_ticket(metadata, folder)
    dense = {name: list(tensor.shape) for name, tensor in under("state", tensors).items()}
    built = fitting(metadata["model"], {**metadata["layers"], **dense}, model, folder)
    masks = saved_masks(metadata, tensors, folder)
    with whole(folder):
        fill_(built, unpack_state(tensors, masks))
        check_masks(built, masks)
    return Ticket(
        model=built,
        masks=masks,
        cost=saved_cost(metadata, folder),
        **{name: metadata[name] for name in PLAIN_FIELDS},
        rounds=[
            _unpacked(earlier, under(f"round-{number}", tensors), folder, model)
            for number, earlier in enumerate(metadata["rounds"], start=1)
        ],
    )


def input_fields(example_input: Inputs | None) -> dict[str, Any]:
    """Return the fields in which a ticket remembers its model's input."""
    if isinstance(example_input, Tensor) and example_input.is_floating_point():
        shape, dtype = list(example_input.shape[1:]), str(example_input.dtype)
        return {"input_shape": shape, "input_dtype": dtype.removeprefix("torch.")}
    return {}


def check_ticket(metadata: Mapping[str, Any], folder: Path | str) -> None:
    """Raise a ValueError for metadata that no ticket can have, before it is used."""
    if not isinstance(metadata, Mapping):
        raise ValueError(
            f"{str(folder)!r} is damaged: one of its rounds is {reprlib.repr(metadata)}."
        )
    check_fields(metadata, folder, **TICKET_FIELDS)
    with whole(folder):
        shape = metadata["input_shape"] or []
        for sizes in [shape, *metadata["layers"].values()]:
            if not all(type(size) is int and size >= 0 for size in sizes):
                raise ValueError(f"{reprlib.repr(sizes)} is not a shape")
        if not -(1 << 63) <= metadata["seed"] < 1 << 63:
            raise ValueError(f"{reprlib.repr(metadata['seed'])} is not a seed")
        if not isinstance(getattr(torch, metadata["input_dtype"], None), torch.dtype):
            raise ValueError(f"'input_dtype' is {reprlib.repr(metadata['input_dtype'])}")


def saved_masks(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path | str
) -> Masks:
    """Return the masks of a ticket saved in `folder`, in the order of its model."""
    check_ticket(metadata, folder)
    groups, scope, layers = metadata["groups"], metadata["scope"], metadata["layers"]
    with whole(folder):
        structure = get_structure(metadata["structure"], scope)
        if structure.spans_tensors:
            structure = Groups.from_json(groups, scope, layers)
        return Masks(unpack_masks(tensors, layers), structure)


@torch.no_grad()
def check_masks(model: nn.Module, masks: Masks) -> None:
    """Raise a ValueError unless every pruned weight of `model` is zero."""
    parameters = parameter_names(model)
    for name, mask in masks.items():
        if name not in parameters or parameters[name].shape != mask.shape:
            raise ValueError(f"The masks do not fit the model at {name!r}.")
        if torch.count_nonzero(parameters[name][~mask]):
            raise ValueError(f"Pruned weights of {name!r} are not zero.")
