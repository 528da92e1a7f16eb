"""A pruned model without its dead units, certified to compute the same."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn

from biprune.core.checks import check_positive
from biprune.core.groups import Group
from biprune.core.layout import is_channels_last, lay_out_
from biprune.core.parameters import parameter_names, unwrap
from biprune.structured.calls import Attention, Inputs, by_position, check_runs
from biprune.structured.certificate import (
    TOLERANCES,
    Certificate,
    Comparer,
    Comparison,
    Form,
    Indices,
    Size,
    hash_of,
)
from biprune.structured.edit import Numbered, Numbers, numbers_of, resize_
from biprune.structured.find import found_in, labels_of
from biprune.structured.graph import NoBoxError, without_units
from biprune.structured.grouping import Coupling
from biprune.structured.labels import Labels
from biprune.structured.macs import count_macs
from biprune.structured.removal import Keep, gone_atoms, kept_indices, tensors_of, units_to_keep
from biprune.structured.trace import trace
from biprune.training.copying import copied, refuse_meta

READ_ELSEWHERE = (
    "what its units give is read by more than layers, so that only units of zeros alone can go"
)


def shrink(
    model: nn.Module,
    groups: Coupling | None,
    example_input: Inputs,
    *,
    form: Form | None = None,
    seed: int = 0,
    tolerance: float | None = None,
) -> nn.Module:
    """Return a copy of `model` without the units that nothing depends on; `model` is not changed.

    The weights say which these are; see `removal`. All units that structure "group" prunes go, and
    of the filters and channels that other structures prune those that can. Every layer keeps
    at least one unit.

    The copy is the model's own class with smaller tensors, if that certifies. Else it is the
    model's graph: a module that trains, without the attributes and methods of the model.

    Args:
        model: A pruned model.
        groups: From `find_groups`; None finds them.
        example_input: A small batch, a tuple of arguments, or a mapping of keyword arguments.
        form: "module" or "graph" if only that will do.
        seed: Of the inputs that are compared.
        tolerance: Of the largest output; by default 1e-9 in float64, 1e-4 where only float32
            works.

    Returns:
        The copy, in eval mode. Its attribute `certificate` says what was removed, why the rest
        stays, and by how much outputs differ.

    Raises:
        ValueError: Outputs differ by more than `tolerance`; the message names the layer. Or only a
            graph will do, and there is none.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> with torch.no_grad():
    ...     _ = net[2].weight[:, 1].zero_()
    >>> small = shrink(net, None, torch.zeros(2, 4))
    >>> small[0].weight.shape, small.certificate.max_error < 1e-12
    (torch.Size([2, 4]), True)
    """
    if tolerance is not None:
        check_positive("tolerance", tolerance)
    refuse_meta(model)
    masked = copied(unwrap(model)).eval()
    called, tensors = by_position(masked, example_input)
    inputs = _on_device(tensors, masked)
    check_runs(called, inputs)
    example = dict(zip(called.names, inputs, strict=True)) if called.names else inputs
    if groups is None:
        coupling, labels = found_in(masked, example, "heads", False, seed)
    else:
        coupling, labels = groups, _labels_for(masked, example, groups)
    if form == "graph" and not labels.traced.exported:
        raise ValueError(
            f"The model has no graph that holds for other inputs ({labels.traced.refused}). Leave "
            "`form` out, or change its forward."
        )
    macs = count_macs(masked, example)
    comparer = Comparer(called, inputs, seed, sum(macs.values()))
    allowed = TOLERANCES[comparer.dtype] if tolerance is None else tolerance
    job = _Job(masked, labels, coupling.groups, comparer, allowed, form)
    keep, made, read_elsewhere = job.done(None if called.names else inputs)
    macs_left = count_macs(made.model, example)
    vars(made.model)["certificate"] = Certificate(
        form=made.form,
        max_error=made.compared.error,
        tolerance=allowed,
        spread=comparer.spread,
        dtype=str(comparer.dtype).removeprefix("torch."),
        batches=made.compared.batches,
        seed=seed,
        units=sum(group.size for group in coupling.groups),
        units_removed=sum(int((~units).sum()) for units in keep.values()),
        zeros=_zeros(masked, macs),
        zeros_left=_zeros(made.model, macs),
        before=Size.of(masked, sum(macs.values())),
        after=Size.of(made.model, sum(macs_left.values())),
        left_out={**coupling.left_out, **dict.fromkeys(read_elsewhere, READ_ELSEWHERE)},
        kept=_of_original(masked, made.kept),
        numbers=made.numbers,
        not_module=made.why if made.form == "graph" else "",
        weights=hash_of(made.model),
    )
    return made.model


class _Made(NamedTuple):
    """A small model, and how it compares; `why` the class itself would not do."""

    model: nn.Module
    form: Form
    compared: Comparison
    kept: dict[str, dict[int, Tensor]]
    numbers: Numbers
    why: str


@dataclass(frozen=True)
class _Job:
    """What it takes to make a model without units and to compare it."""

    masked: nn.Module
    labels: Labels
    groups: Sequence[Group]
    comparer: Comparer
    allowed: float
    form: Form | None

    def done(self, inputs: tuple[Tensor, ...] | None) -> tuple[dict[str, Tensor], _Made, list[str]]:
        """The units that stay, the model of these, and the groups that are read elsewhere.

        First all that seems dead goes. If that was a mistake, only what the zeros of the weights
        say. If an operation reads what no layer does, such as a norm over units, less of the groups
        that it reads.
        """
        read_elsewhere: list[str] = []
        for evidence in (inputs, None):
            keep = units_to_keep(self.masked, self.groups, evidence)
            made = self.without(keep)
            if self.certifies(made):
                return keep, made, read_elsewhere
        read_elsewhere = self.culprits(keep)
        keep = units_to_keep(self.masked, self.groups, None, read_elsewhere)
        made = self.without(keep)
        if not self.certifies(made):
            raise ValueError(
                "The model without the units that are zero is another model: outputs differ by "
                f"{made.compared.error:.1e} of their size, {self.allowed:.0e} is allowed (it "
                f"{made.compared.reason}). This comes from {', '.join(read_elsewhere)}. Leave "
                "these layers out with `exclude` when pruning."
            )
        return keep, made, read_elsewhere

    def certifies(self, made: _Made) -> bool:
        """Whether the outputs differ by no more than is allowed; not if they are no numbers."""
        return made.compared.error <= self.allowed

    def without(self, keep: Keep) -> _Made:
        """The first form that certifies, else the last that was tried."""
        gone = gone_atoms(self.labels, self.groups, keep)
        kept = kept_indices(self.labels, gone)
        tried: list[_Made] = []
        for how in get_args(Numbered) if self.form != "graph" else ():
            tried.append(self._edited(gone, kept, keep, how))
            if self.certifies(tried[-1]):
                return tried[-1]
        if tried and (self.form == "module" or not self.labels.traced.exported):
            return tried[-1]
        try:
            small = without_units(self.labels, gone, tensors_of(self.masked))
            compared = self.comparer.compare(small)
        except NoBoxError as error:
            small, compared = self.masked, Comparison(math.inf, (), str(error))
        why = tried[0].why if tried else "was not asked for"
        return _Made(small, "graph", compared, kept, {}, why)

    def _edited(
        self, gone: Tensor, kept: dict[str, dict[int, Tensor]], keep: Keep, how: Numbered
    ) -> _Made:
        small = copy.deepcopy(self.masked)
        numbers = numbers_of(self.masked, self.labels, gone, self.groups, keep, how)
        resize_(small, kept, numbers)
        lay_out_(small, channels_last=is_channels_last(small))  # unsafe ones as usual
        compared = self.comparer.compare(small)
        return _Made(small, "module", compared, kept, numbers, compared.reason)

    def culprits(self, keep: Keep) -> list[str]:
        """The groups that make a difference alone; all of them if none does."""
        whole = {name: torch.ones_like(units) for name, units in keep.items()}
        cut = [name for name, units in keep.items() if not bool(units.all())]
        alone = (self.without({**whole, name: keep[name]}) for name in cut)
        found = [name for name, made in zip(cut, alone, strict=True) if not self.certifies(made)]
        return found or cut


def _labels_for(masked: nn.Module, example: Inputs, groups: Coupling) -> Labels:
    """Labels by which these groups can go: of whole heads, of their width, or of streams."""
    traced = trace(masked, example)
    keep = {group.name: torch.arange(group.size) > 0 for group in groups.groups}
    refused: list[ValueError] = []
    for streams in (False, True):
        for attention in get_args(Attention):
            labels = labels_of(masked, example, attention, streams, traced)
            try:
                gone_atoms(labels, groups.groups, keep)
                return labels
            except ValueError as error:
                refused.append(error)
    raise refused[0]


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
    weights = [parameters[name] for name in names if name in parameters]
    return sum(weight.numel() - int(torch.count_nonzero(weight)) for weight in weights)


def _on_device(inputs: tuple[Tensor, ...], model: nn.Module) -> tuple[Tensor, ...]:
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise ValueError("The model has no parameters: there is nothing to remove.")
    return tuple(tensor.detach().to(parameter.device) for tensor in inputs)
