"""A pruned model without its dead units, certified to compute the same."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from biprune.checks import check_positive
from biprune.copying import copied
from biprune.deploy.coupling.find import Coupling, find_groups
from biprune.deploy.inputs import Inputs, as_inputs
from biprune.deploy.macs import count_macs
from biprune.deploy.outputs import check_runs
from biprune.deploy.shrinking.certificate import (
    TOLERANCES,
    Certificate,
    Indices,
    Size,
    certified_error,
    hash_of,
)
from biprune.deploy.shrinking.removal import units_to_keep
from biprune.deploy.surgery.attention import replaced_modules
from biprune.deploy.surgery.resize import kept_indices, resize_
from biprune.groups import Group
from biprune.layout import is_channels_last, lay_out_
from biprune.parameters import parameter_names, unwrap

READ_ELSEWHERE = (
    "what its units give is read by more than layers, so that only units of zeros alone can go"
)


def shrink(
    model: nn.Module,
    groups: Coupling | None,
    example_input: Inputs,
    *,
    seed: int = 0,
    tolerance: float | None = None,
) -> nn.Module:
    """Return a copy of `model` without the units that nothing depends on; `model` is not changed.

    Which these are the weights say; see `removal`. All units that structure "group" prunes are;
    of the filters and channels that other structures prune, those that can go. `groups` come from
    `find_groups`, None finds them. Every layer keeps at least one unit.

    The copy is in eval mode and has an attribute `certificate`, which says what was removed, why
    the rest stays, and by how much outputs differ; see `Certificate`. More than `tolerance` (in
    parts of the largest output; by default 1e-9 in float64, 1e-4 where only float32 works) is a
    ValueError that names the layer.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> with torch.no_grad():
    ...     _ = net[2].weight[:, 1].zero_()
    >>> small = shrink(net, None, torch.zeros(1, 4))
    >>> small[0].weight.shape, small.certificate.max_error < 1e-12
    (torch.Size([2, 4]), True)
    """
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    masked = copied(unwrap(model)).eval()
    inputs = _on_device(as_inputs(example_input), masked)
    check_runs(masked, inputs)
    coupling = find_groups(masked, inputs, seed=seed) if groups is None else groups
    # First all that seems dead; if that was a mistake, only what the zeros of the weights say; if
    # an operation reads what no layer does, such as a norm over units, less of those groups.
    read_elsewhere: list[str] = []
    for evidence in (inputs, None, None):
        keep = units_to_keep(masked, coupling.groups, evidence, read_elsewhere)
        small, kept = _without(masked, coupling.groups, keep)
        error, dtype, num_inputs = certified_error(masked, small, inputs, seed)
        allowed = TOLERANCES[dtype] if tolerance is None else tolerance
        if error <= allowed:
            break
        if evidence is None:
            read_elsewhere = _culprits(masked, coupling.groups, keep, inputs, seed, allowed)
    else:
        raise ValueError(
            "The model without the units that are zero is another model: outputs differ by "
            f"{error:.1e} of their size, {allowed:.0e} is allowed. This comes from "
            f"{', '.join(read_elsewhere)}. Leave these layers out with `exclude` when pruning."
        )
    macs, macs_left = count_macs(masked, inputs), count_macs(small, inputs)
    vars(small)["certificate"] = Certificate(
        max_error=error,
        tolerance=allowed,
        dtype=str(dtype).removeprefix("torch."),
        num_inputs=num_inputs,
        seed=seed,
        units=sum(group.size for group in coupling.groups),
        units_removed=sum(int((~units).sum()) for units in keep.values()),
        zeros=_zeros(masked, macs),
        zeros_left=_zeros(small, macs),
        before=Size.of(masked, sum(macs.values())),
        after=Size.of(small, sum(macs_left.values())),
        left_out={**coupling.left_out, **dict.fromkeys(read_elsewhere, READ_ELSEWHERE)},
        replaced=replaced_modules(small),
        kept=_of_original(masked, kept),
        weights=hash_of(small),
    )
    return small


def _without(
    masked: nn.Module, groups: Sequence[Group], keep: Mapping[str, Tensor]
) -> tuple[nn.Module, dict[str, dict[int, Tensor]]]:
    small = copy.deepcopy(masked)
    shapes = {name: p.shape for name, p in parameter_names(masked).items()}
    kept = kept_indices(groups, keep, shapes)
    resize_(small, kept)
    lay_out_(small, channels_last=is_channels_last(small))  # unsafe ones as usual
    return small, kept


def _culprits(
    masked: nn.Module,
    groups: Sequence[Group],
    keep: Mapping[str, Tensor],
    inputs: tuple[Tensor, ...],
    seed: int,
    allowed: float,
) -> list[str]:
    """The groups that make a difference alone; all of them if none does."""
    cut = [group for group in groups if not bool(keep[group.name].all())]
    found = []
    for group in cut:
        small, _ = _without(masked, [group], keep)
        if not certified_error(masked, small, inputs, seed)[0] <= allowed:
            found.append(group.name)
    return found or [group.name for group in cut]


def _of_original(masked: nn.Module, kept: Mapping[str, Mapping[int, Tensor]]) -> Indices:
    """Indices as they were before the model was first shrunk, if it was."""
    earlier = getattr(masked, "certificate", None)
    before = earlier.kept if isinstance(earlier, Certificate) else {}
    whole = {name: dict(dims) for name, dims in before.items()}
    for name, dims in kept.items():
        for dim, index in dims.items():
            old = before.get(name, {}).get(dim)
            now = index.tolist()
            whole.setdefault(name, {})[dim] = now if old is None else [old[i] for i in now]
    return whole


def _zeros(model: nn.Module, names: Iterable[str]) -> int:
    """How many of the named weights are zero."""
    parameters = parameter_names(model)
    weights = [parameters[name] for name in names]
    return sum(weight.numel() - int(torch.count_nonzero(weight)) for weight in weights)


def _on_device(inputs: tuple[Tensor, ...], model: nn.Module) -> tuple[Tensor, ...]:
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ValueError("The model has no parameters: there is nothing to remove.")
    return tuple(tensor.detach().to(parameter.device) for tensor in inputs)
