"""Copies of a user's model: refused in words where a copy would fail, or be another model."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from biprune.core.layout import lay_out_
from biprune.core.parameters import unwrap
from biprune.models import MODELS


def copied(model: nn.Module) -> nn.Module:
    """A deep copy, which needs every tensor in the model to be its own."""
    try:
        return copy.deepcopy(model)
    except (RuntimeError, TypeError) as error:
        reason = f"{error}".strip().partition("\n")[0]
        if computed := _computed(model):
            reason = f"{', '.join(computed)} is computed from other tensors before each forward."
        raise ValueError(
            f"The model cannot be copied: {reason} If this comes from another tool, take it off: "
            "call torch.nn.utils.remove_weight_norm, remove_spectral_norm or prune.remove on these "
            "layers. A module of your own that holds what cannot be copied needs a __deepcopy__."
        ) from error


def _computed(model: nn.Module) -> list[str]:
    """Attributes that a hook writes, as torch.nn.utils.prune and weight_norm do."""
    return [
        f"`{'.'.join(filter(None, (name, attribute)))}`"
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, Tensor) and value.grad_fn is not None
    ]


def copy_model(model: nn.Module, *, channels_last: bool | None) -> nn.Module:
    """A deep copy of the user's own module, to train in place.

    With `channels_last` its 2-d convolution weights are laid out as the faster kernels want them,
    where that is safe. None does so for models of our registry alone: a user's own may rely on the
    usual layout, as `view` does, and stays as it is.
    """
    _refuse_meta(model)
    _refuse_infinite(model)
    model = copied(unwrap(model))
    if channels_last is None:
        channels_last = getattr(model, "created_by", {}).get("name") in MODELS or None
    if channels_last is not None:
        lay_out_(model, channels_last=channels_last)
    return model


def _refuse_meta(model: nn.Module) -> None:
    """Tensors without numbers can be neither trained nor ranked."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    if empty := [name for name, tensor in tensors if tensor.is_meta]:
        raise ValueError(
            f"{len(empty)} of the {len(tensors)} tensors of `model` are on the meta device, "
            f"without numbers, such as {empty[0]!r}. Load its weights first, or call "
            "`model.to_empty(device=...)` and initialize them."
        )


def _refuse_infinite(model: nn.Module) -> None:
    """Nothing can be learnt from there; buffers may be infinite on purpose, as causal masks are."""
    broken = [n for n, p in model.named_parameters() if not bool(p.detach().isfinite().all())]
    if broken:
        raise ValueError(
            f"`model` has infinite or NaN numbers in {broken[0]!r}: the run that it comes from "
            "diverged, or its file is damaged. Load or initialize it anew."
        )
