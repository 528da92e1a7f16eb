"""What the units of a group are, in words that a person knows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from biprune.core.groups import Slice
from biprune.structured.labels import Labels


class Titles:
    """Names groups by what runs through them: norms over all of them, products of activations."""

    def __init__(self, labels: Labels) -> None:
        self._labels, self._roots = labels, labels.atoms.roots()
        self._normed = self._set_of(labels.normed)
        lines = [line for product in labels.products.values() for line in product.lines]
        self._multiplied = self._set_of(lines)

    def _set_of(self, lines: Sequence[Tensor]) -> set[int]:
        return {int(root) for line in lines for root in self._roots[line.reshape(-1)].unique()}

    def of(self, slices: Sequence[Slice]) -> str:
        """The title of a group that lies in these slices."""
        filters = [part for part in slices if part.role == "filter"]
        first = filters[0]
        root = int(self._roots[self._labels.owned[first.tensor, first.dim][first.places[0, 0]]])
        size, each = first.places.shape
        owners = [part.tensor.rpartition(".")[0] for part in filters]
        where = _common(owners) or f"{owners[0]} and others"
        if root in self._normed:
            return f"residual stream: {size} units"
        if root in self._multiplied and each > 1:
            return f"{where} {self._heads(filters)}"
        kind = "channels" if len(self._shape(first.tensor)) > 2 else "width"
        return f"{where} {kind}: {size} units"

    def _heads(self, filters: Sequence[Slice]) -> str:
        size = len(filters[0].places)
        in_a_row = bool((filters[0].places.diff(dim=1) == 1).all())
        if self._labels.attention == "width" and not in_a_row:
            return f"width of heads: {size} units, each of all heads"
        queries = max(part.places.shape[1] for part in filters)
        fewest = min(part.places.shape[1] for part in filters)
        shared = ", each with its queries" if queries > fewest and size > 1 else ""
        return f"attention heads: {size}{shared}"

    def _shape(self, tensor: str) -> tuple[int, ...]:
        traced = self._labels.traced
        nodes = traced.module.graph.find_nodes(op="get_attr")
        reads = [node for node in nodes if traced.names.get(str(node.target)) == tensor]
        return traced.results[reads[0]].shape


def _common(paths: Sequence[str]) -> str:
    """The module that holds all of these."""
    split = [path.split(".") for path in paths]
    same = []
    for parts in zip(*split, strict=False):
        if len(set(parts)) > 1:
            break
        same.append(parts[0])
    return ".".join(same)
