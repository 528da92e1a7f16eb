"""`biprune profile`: what a ticket takes and how long it runs, beside what it could be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from biprune.cli import options
from biprune.cli.models import InputShape, OwnModel, TicketFolder, open_ticket, sample_input
from biprune.cli.printing import print_json, print_lines, print_table, print_text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from biprune import Ticket
    from biprune.runtime.measured import Profile

EXAMPLES = """\
$ biprune profile runs/half
$ biprune profile runs/pruned90 --batches 1,8,64 --threads 4 --rounds 50
$ biprune profile runs/pruned90 --json > profile.json"""


def profile_command(
    ticket: TicketFolder,
    batches: Annotated[str, typer.Option(help="Batch sizes, such as 1,64.")] = "1,64",
    rounds: Annotated[int, typer.Option(help="Measurements of each latency.", min=1)] = 20,
    seed: options.Seed = 0,
    input_shape: InputShape = None,
    model: OwnModel = None,
    model_option: options.ModelOptions = None,
    threads: options.Threads = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure a ticket dense, masked, made small and in onnxruntime, taking turns.

    Shows parameters, multiply-accumulates of one sample, size of the file, and latency.
    """
    from biprune.cli.device import use_machine
    from biprune.runtime.profile import profile, ticket_variants

    sizes = options.numbers("--batches", batches, int)
    if min(sizes) < 1:
        raise ValueError(f"`--batches` takes sizes of at least 1, got {batches!r}.")
    use_machine(threads)
    opened = open_ticket(ticket, model, model_option)
    inputs = sample_input(opened, input_shape)
    small, notes = _small(opened, inputs)
    with TemporaryDirectory() as folder:
        variants, said = ticket_variants(opened.model, opened.masks, small, inputs, Path(folder))
        measured = profile(variants, inputs, batches=sizes, rounds=rounds, seed=seed)
    notes += said
    if as_json:
        print_json({**asdict(measured), "verdict": measured.verdict, "notes": notes})
        return
    _print_sizes(measured)
    _print_latencies(measured, sizes)
    print_text(measured.verdict)
    print_lines(*(f"note: {note}" for note in notes))


def _small(ticket: Ticket, inputs: Tensor) -> tuple[nn.Module | None, list[str]]:
    """The ticket made smaller; None, with the reason, if nothing can be removed."""
    from biprune.core.parameters import parameter_names

    try:
        small = ticket.shrink(inputs)
    except ValueError as error:
        return None, [f"small: {error}"]
    before, after = (
        sum(parameter.numel() for parameter in parameter_names(module).values())
        for module in (ticket.model, small)
    )
    if after < before:
        return small, []
    return None, ["small: no unit is zero as a whole, so nothing can be removed."]


def _print_sizes(measured: Profile) -> None:
    headers = ("variant", "parameters", "not zero", "MACs", "file, bytes")
    rows = [
        (
            row.name,
            f"{row.size.parameters:,}",
            f"{row.size.nonzero:,}",
            "-" if row.size.macs is None else f"{row.size.macs:,}",
            f"{row.size.bytes:,}",
        )
        for row in measured.rows
    ]
    print_table(headers, rows, numeric=headers[1:])


def _print_latencies(measured: Profile, batches: Sequence[int]) -> None:
    headers = ("variant", "batch", "median, ms", "p90, ms", "speed-up")
    rows = [
        (row.name, str(batch), f"{each.median:.2f}", f"{each.p90:.2f}", f"{each.speedup:.2f}")
        for batch in batches
        for row in measured.rows
        for each in [row.latency[batch]]
    ]
    threads = f"{measured.threads} thread{'s' if measured.threads > 1 else ''}"
    title = f"A forward in inference mode, {threads}, {measured.rounds} rounds"
    print_table(headers, rows, title=title, numeric=headers[1:])
