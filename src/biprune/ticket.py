"""Ticket: a pruned model with its measurements. Saves and loads without pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from biprune.checkpoint import State
from biprune.deploy.artifact import (
    check_fields,
    read_artifact,
    rebuild,
    saved_cost,
    write_artifact,
)
from biprune.deploy.sparse import pack, unpack_masks, unpack_state
from biprune.loop import Cost, Record
from biprune.masks import Masks
from biprune.structure import get_structure, parameter_names, unwrap

ROUND = "round-"
TICKET_FIELDS = {
    "model": (dict, NoneType),
    "layers": dict,
    "structure": str,
    "scope": str,
    "method": str,
    "settings": dict,
    "sparsity": (int, float),
    "seed": int,
    "chosen": dict,
    "accuracy": (int, float, NoneType),
    "dense_accuracy": (int, float, NoneType),
    "cost": dict,
    "data": (dict, NoneType),
    "history": list,
    "num_rounds": int,
}


@dataclass
class Ticket:
    """What `prune` returns.

    `model` is an ordinary module in eval mode whose pruned weights are exactly zero. `accuracy` is
    on test, in percent (or what `evaluate` returned), read once; None if nothing could be measured.
    `settings` are the method's, `data` says how the dataset was loaded, `chosen` which tensors were
    offered to it (`include`, `exclude`, `allow_empty`). `rounds` are the tickets that an iterative
    method passed on its way to this one.
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
    rounds: list[Ticket] = field(default_factory=list, repr=False)

    def save(self, folder: Path | str) -> Path:
        """Write the ticket into `folder` as safetensors and JSON, its rounds into subfolders.

        Pruned weights take no room: only the mask's bits and the kept values are written.
        """
        for number, earlier in enumerate(self.rounds, start=1):
            earlier.save(Path(folder) / f"{ROUND}{number}")
        metadata = {
            "model": getattr(self.model, "created_by", None),
            "layers": {name: list(mask.shape) for name, mask in self.masks.items()},
            "structure": self.masks.structure.name,
            "scope": self.masks.structure.scope,
            "method": self.method,
            "settings": self.settings,
            "sparsity": self.sparsity,
            "seed": self.seed,
            "chosen": self.chosen,
            "accuracy": self.accuracy,
            "dense_accuracy": self.dense_accuracy,
            "cost": asdict(self.cost),
            "data": self.data,
            "history": self.history,
            "num_rounds": len(self.rounds),
        }
        check_masks(self.model, self.masks)
        tensors = pack(unwrap(self.model).state_dict(), self.masks)
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
        accuracy=metadata["accuracy"],
        cost=saved_cost(metadata, folder),
        history=metadata["history"],
        method=metadata["method"],
        settings=metadata["settings"],
        sparsity=metadata["sparsity"],
        seed=metadata["seed"],
        data=metadata["data"],
        chosen=metadata["chosen"],
        dense_accuracy=metadata["dense_accuracy"],
    )
    check_masks(ticket.model, masks)
    rounds = range(1, metadata["num_rounds"] + 1)
    ticket.rounds = [load_ticket(Path(folder) / f"{ROUND}{n}", model) for n in rounds]
    return ticket


def saved_masks(
    metadata: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path | str
) -> Masks:
    """The masks of a ticket saved in `folder`, in the order of its model."""
    check_fields(metadata, folder, **TICKET_FIELDS)
    structure = get_structure(metadata["structure"], metadata["scope"])
    return Masks(_whole(folder, unpack_masks, tensors, metadata["layers"]), structure)


def _whole(folder: Path | str, unpack: Callable[..., State], *packed: Any) -> State:
    try:
        return unpack(*packed)
    except ValueError as error:
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
