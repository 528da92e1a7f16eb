"""Copies of a user's model, with clear errors where a copy is impossible."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from biprune.core.layout import lay_out_
from biprune.core.parameters import unwrap
from biprune.models import MODELS


def copied(model: nn.Module) -> nn.Module:
    """Return a deep copy of `model`."""
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        reason = f"{error}".strip().partition("\n")[0]
        if computed := _computed(model):
            reason = f"{', '.join(computed)} is computed from other tensors before each forward."
        raise ValueError(
            f"The model cannot be copied: {reason} If another tool did this, undo it: call "
            "torch.nn.utils.remove_weight_norm, remove_spectral_norm or prune.remove on these "
            "layers. If a module of yours holds something that cannot be copied, it needs a "
            "__deepcopy__."
        ) from error


def _computed(model: nn.Module) -> list[str]:
    """List attributes that a hook computes, as torch.nn.utils.prune and weight_norm do."""
    return [
        f"`{'.'.join(filter(None, (name, attribute)))}`"
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, Tensor) and value.grad_fn is not None
    ]


def copy_model(model: nn.Module, *, channels_last: bool | None) -> nn.Module:
    """Return a deep copy of the user's module, to be trained in place.

    With `channels_last`, weights of 2-d convolutions get the layout of the faster kernels where
    that is safe. None does so only for models of our registry: a user's model may rely on the usual
    layout, for example by calling `view`.
    """
    refuse_meta(model)
    _refuse_infinite(model)
    model = copied(unwrap(model))
    if channels_last is None:
        channels_last = getattr(model, "created_by", {}).get("name") in MODELS or None
    if channels_last is not None:
        lay_out_(model, channels_last=channels_last)
    return model


def refuse_meta(model: nn.Module) -> None:
    """Raise a ValueError for tensors on the meta device, which have no values."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    if empty := [name for name, tensor in tensors if tensor.is_meta]:
        raise ValueError(
            f"{len(empty)} of the {len(tensors)} tensors of `model` are on the meta device, "
            f"without values, such as {empty[0]!r}. Load its weights first, or call "
            "`model.to_empty(device=...)` and initialize them."
        )


def _refuse_infinite(model: nn.Module) -> None:
    """Raise a ValueError for infinite parameters; buffers may be, like causal masks."""
    broken = [n for n, p in model.named_parameters() if not bool(p.detach().isfinite().all())]
    if broken:
        raise ValueError(
            f"`model` has infinite or NaN numbers in {broken[0]!r}: the run it comes from "
            "diverged, or its file is damaged. Load or initialize it anew."
        )
