"""`biprune export`: an ONNX file of a ticket."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from biprune.cli import options
from biprune.cli.models import InputShape, OwnModel, TicketFolder, open_ticket, sample_input
from biprune.cli.printing import print_facts, print_json

EXAMPLES = """\
$ biprune export runs/half model.onnx
$ biprune export runs/half masked.onnx --no-shrink
$ biprune export runs/own80 own.onnx --model mymodels:net \\
    --input-shape 3x64x64"""


def export_command(
    ticket: TicketFolder,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The ONNX file to write.")],
    shrink: Annotated[
        bool | None,
        typer.Option(
            help="Take the pruned units out first.", show_default="for structure group alone"
        ),
    ] = None,
    input_shape: InputShape = None,
    model: OwnModel = None,
    model_option: options.ModelOptions = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a ticket as one ONNX file for batches of any size, checked in onnxruntime.

    Needs the extra: pip install 'biprune\\[onnx]'.
    """
    from biprune.runtime.measured import footprint
    from biprune.runtime.onnx import OnnxModel, require_onnx

    require_onnx()
    opened = open_ticket(ticket, model, model_option)
    inputs = sample_input(opened, input_shape)
    check = opened.export(out, example_input=inputs, shrink=shrink)
    size, session = footprint(check.path, inputs), OnnxModel(check.path).session
    document: dict[str, Any] = {
        "file": str(check.path),
        "bytes": size.bytes,
        "error": check.error,
        "parameters": size.parameters,
        "nonzero": size.nonzero,
        "inputs": {each.name: each.shape for each in session.get_inputs()},
        "outputs": {each.name: each.shape for each in session.get_outputs()},
    }
    if as_json:
        print_json(document)
        return
    print_facts(
        {
            "file": f"{check.path}, {size.bytes:,} bytes",
            "parameters": f"{size.parameters:,}, of which {size.nonzero:,} are not zero",
            "inputs": _shapes(document["inputs"]),
            "outputs": _shapes(document["outputs"]),
            "checked": f"onnxruntime gives what PyTorch gives to {check.error:.1e}, at batch "
            + ", ".join(map(str, check.batches)),
        }
    )


def _shapes(named: dict[str, list[int | str]]) -> str:
    return "; ".join(f"{name} {' x '.join(map(str, shape))}" for name, shape in named.items())
