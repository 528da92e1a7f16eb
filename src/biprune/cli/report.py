"""`biprune report`: the records of a store as a page, figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from biprune.cli.printing import print_lines

EXAMPLES = """\
$ biprune report runs/store -o report.html
$ biprune report runs/store -o report.html --figures figures --latex table.tex"""


def report_command(
    store: Annotated[
        Path, typer.Argument(metavar="STORE", help="The store of `compare` or `reproduce`.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="What stands above it.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the charts, as SVG and PNG.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="File for the cells.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="File for the tables.")] = None,
    latex: Annotated[Path | None, typer.Option(help="File for the tables, for a paper.")] = None,
) -> None:
    """Write one page that works offline, with charts, tables and every run's settings."""
    from biprune.experiments.store import Store
    from biprune.report import write_report

    records = list(Store(store))
    if not records:
        raise ValueError(f"{str(store)!r} holds no records; `biprune compare` makes some.")
    write_report(
        records, out, title=title, figures=figures, csv=csv, markdown=markdown, latex=latex
    )
    written = (out, figures, csv, markdown, latex)
    print_lines(f"{len(records)} runs", *(str(path) for path in written if path))
