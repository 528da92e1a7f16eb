"""What was asked for against what was reached, layer by layer, for coupled groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from biprune.cli.tables import print_lines, print_table

if TYPE_CHECKING:
    from biprune import Masks
    from biprune.core.groups import Groups


def print_budget(masks: Masks, structure: Groups, sparsity: float) -> None:
    """What each layer keeps, what a unit of each group costs in words, then the total."""
    from biprune.core.budget import kept_fractions, kept_macs, unit_costs

    layers = masks.per_layer()
    counts = [count.kept for count in layers.values()]
    macs = kept_macs(structure, counts)
    by_layer = structure.measure == "units" and structure.scope == "layer"
    rows = []
    for group in structure.groups:
        count = layers[group.name]
        wanted = f"{(1 - sparsity) * count.total:.1f}" if by_layer else "-"
        for name in dict.fromkeys(part.tensor for part in group.filters):
            before, after = structure.macs.get(name, 0), macs.get(name, 0.0)
            share = f"{100 * after / before:.1f} %" if before else "-"
            rows.append((name, wanted, str(count.kept), str(count.total), share))
    headers = ("layer", "asked", "kept", "of", "MACs left")
    print_table(headers, rows, numeric=headers[1:])
    costs = unit_costs(structure)
    groups = [
        (group.title or group.name, *(f"{cost:,}" for cost in costs[group.name]))
        for group in structure.groups
    ]
    headers = ("group", "MACs a unit", "weights a unit")
    print_table(headers, groups, numeric=headers[1:])
    shares = kept_fractions(structure, counts)
    found = ", ".join(f"{100 * share:.2f} % of the {name}" for name, share in shares.items())
    asked = f"{100 * (1 - sparsity):.2f} % of the {structure.measure}"
    print_lines(f"Asked to keep {asked}: kept {found}.")
