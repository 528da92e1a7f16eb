"""The certificate of a small model in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from biprune.cli.tables import print_facts, print_lines

if TYPE_CHECKING:
    from biprune import Certificate


def print_certificate(
    certificate: Certificate, others: Mapping[str, str], *, trained_since: bool = False
) -> None:
    """What was removed, how far outputs are apart, and why the rest stays; `others` come first."""
    when = ", when it was cut: its weights have changed since" if trained_since else ""
    before, after = certificate.before, certificate.after
    print_facts(
        {
            **others,
            "units": f"{certificate.units_removed:,} of {certificate.units:,} removed",
            "parameters": _change(before.parameters, after.parameters),
            "MACs": _change(before.macs, after.macs),
            "bytes of the state": _change(before.bytes, after.bytes),
            "form": certificate.form,
            "certified": f"outputs agree to {certificate.max_error:.1e} of their size on "
            f"{certificate.num_inputs} inputs ({certificate.dtype}){when}; between inputs they "
            f"differ by {certificate.spread:.1e}",
            "zeros left": f"{certificate.zeros_left:,} of {certificate.zeros:,}",
        }
    )
    print_lines(*(f"{name} stays whole: {why}." for name, why in certificate.left_out.items()))
    if certificate.form == "graph":
        print_lines(f"The model is a graph: its own class {certificate.not_module}.")
    if certificate.is_blind:
        print_lines(certificate.blindness)


def _change(before: int, after: int) -> str:
    return f"{before:,} -> {after:,} ({100 * after / before:.1f} %)"
