"""Ticket: a pruned model with its measurements. Saves and loads without pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from biprune.batches import device_of
from biprune.checkpoint import only_tensors
from biprune.deploy.files.artifact import (
    check_fields,
    read_artifact,
    rebuild,
    saved_cost,
    write_artifact,
)
from biprune.deploy.files.sparse import pack, unpack_masks, unpack_state
from biprune.deploy.inputs import Inputs
from biprune.deploy.running.semi_structured import to_semi_structured
from biprune.groups import Groups
from biprune.loop import Cost, Record
from biprune.masks import Masks
from biprune.parameters import own_name, parameter_names, unwrap
from biprune.structure import get_structure

if TYPE_CHECKING:
    from biprune.deploy.running.onnx import OnnxCheck

ROUND = "round-"
Part = TypeVar("Part")
# Fields of a ticket that its file holds as they are, and what it holds besides.
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
    "num_rounds": int,
}


@dataclass
class Ticket:
    """What `prune` returns.

    `model` is an ordinary module in eval mode whose pruned weights are exactly zero. `accuracy` is
    on test, in percent (or what `evaluate` returned), read once; None if nothing could be measured.
    `settings` are the method's, `data` says how the dataset was loaded, `chosen` which tensors were
    offered to it (`include`, `exclude`, `allow_empty`); `left_out` are layers that could not be
    pruned by the structure, with the reason. `input_shape` is that of one sample, if known and if
    the model takes one tensor of floating-point numbers, of `input_dtype`.
    `rounds` are the tickets that an iterative method passed on its way to this one.
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

    def example_input(self, batch: int = 1) -> Tensor:
        """A batch of normal draws, the same each time, of the shape that the model takes."""
        if self.input_shape is None:
            raise ValueError(
                "The ticket does not know what its model takes, or it is not a single tensor of "
                "floating-point numbers: pass `example_input`."
            )
        generator = torch.Generator().manual_seed(self.seed)
        inputs = torch.randn(batch, *self.input_shape, generator=generator)
        return inputs.to(device_of(self.model), getattr(torch, self.input_dtype))

    def shrink(self, example_input: Inputs | None = None) -> nn.Module:
        """A physically smaller module that gives the same outputs, with its `certificate`.

        All units of structure "group" are removed; of others what can go without changing the
        function, and `certificate` says how much. A ValueError names the layer if outputs differ.
        """
        from biprune.deploy.coupling.find import Coupling
        from biprune.deploy.shrinking.shrink import shrink

        inputs = self.example_input(2) if example_input is None else example_input
        structure, model = self.masks.structure, unwrap(self.model)
        is_grouped = isinstance(structure, Groups)
        found = Coupling(structure.groups, self.left_out) if is_grouped else None
        return shrink(model, found, inputs)

    def to_semi_structured(self) -> nn.Module:
        """The model of a 2:4 ticket with the weights that GPUs multiply compressed.

        On an NVIDIA GPU of compute capability 8.0 or more; elsewhere a ValueError says so.
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

        The small model if `shrink`, which is so by default for structure "group".
        """
        from biprune.deploy.running.onnx import export_onnx

        inputs = self.example_input(2) if example_input is None else example_input
        if shrink is None:
            shrink = isinstance(self.masks.structure, Groups)
        return export_onnx(self.shrink(inputs) if shrink else unwrap(self.model), path, inputs)

    def save(self, folder: Path | str) -> Path:
        """Write the ticket into `folder` as safetensors and JSON, its rounds into subfolders.

        Pruned weights take no room: only the mask's bits and the kept values are written. What
        modules keep besides tensors (`get_extra_state`) is not.
        """
        for number, earlier in enumerate(self.rounds, start=1):
            earlier.save(Path(folder) / f"{ROUND}{number}")
        structure = self.masks.structure
        metadata = {
            "model": getattr(self.model, "created_by", None),
            "layers": {name: list(mask.shape) for name, mask in self.masks.items()},
            "structure": structure.name,
            "scope": structure.scope,
            "groups": structure.to_json() if isinstance(structure, Groups) else None,
            "cost": asdict(self.cost),
            "num_rounds": len(self.rounds),
            **{name: getattr(self, name) for name in PLAIN_FIELDS},
        }
        check_masks(self.model, self.masks)
        state = only_tensors(unwrap(self.model).state_dict())
        tensors = pack({own_name(name): tensor for name, tensor in state.items()}, self.masks)
        return write_artifact(folder, "ticket", metadata, tensors)


def load_ticket(folder: Path | str, model: nn.Module | None = None) -> Ticket:
    """Read a ticket back, its weights and masks bit for bit.

    Models of our registry are rebuilt; for any other pass `model`, of which a copy is filled.
    """
    metadata, tensors = read_artifact(folder, "ticket")
    masks = saved_masks(metadata, tensors, folder)
    ticket = Ticket(
        model=rebuild(metadata["model"], _whole(folder, unpack_state, tensors, masks), model),
        masks=masks,
        cost=saved_cost(metadata, folder),
        **{name: metadata[name] for name in PLAIN_FIELDS},
    )
    check_masks(ticket.model, masks)
    rounds = range(1, metadata["num_rounds"] + 1)
    ticket.rounds = [load_ticket(Path(folder) / f"{ROUND}{n}", model) for n in rounds]
    return ticket


def input_fields(example_input: Inputs | None) -> dict[str, Any]:
    """What a ticket remembers of the input, as fields of it."""
    if isinstance(example_input, Tensor) and example_input.is_floating_point():
        shape, dtype = list(example_input.shape[1:]), str(example_input.dtype)
        return {"input_shape": shape, "input_dtype": dtype.removeprefix("torch.")}
    return {}


def saved_masks(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path | str
) -> Masks:
    """The masks of a ticket saved in `folder`, in the order of its model."""
    check_fields(metadata, folder, **TICKET_FIELDS)
    groups, scope = metadata["groups"], metadata["scope"]
    if groups is None:
        structure = get_structure(metadata["structure"], scope)
    else:
        structure = _whole(folder, Groups.from_json, groups, scope)
    return Masks(_whole(folder, unpack_masks, tensors, metadata["layers"]), structure)


def _whole(folder: Path | str, unpack: Callable[..., Part], *packed: Any) -> Part:
    try:
        return unpack(*packed)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{str(folder)!r} is damaged: {error}.") from None


@torch.no_grad()
def check_masks(model: nn.Module, masks: Masks) -> None:
    """Make sure that every pruned weight of `model` is zero."""
    parameters = parameter_names(model)
    for name, mask in masks.items():
        if name not in parameters or parameters[name].shape != mask.shape:
            raise ValueError(f"The masks do not fit the model at {name!r}.")
        if torch.count_nonzero(parameters[name][~mask]):
            raise ValueError(f"Pruned weights of {name!r} are not zero.")
