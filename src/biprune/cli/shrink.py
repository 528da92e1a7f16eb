"""`biprune shrink`: the smaller model of a ticket, certified."""

from __future__ import annotations

from biprune.cli import options
from biprune.cli.models import (
    InputShape,
    OwnModel,
    TicketFolder,
    model_argument,
    open_ticket,
    sample_input,
)
from biprune.cli.printing import print_certificate, print_json, print_lines
from biprune.cli.running import refuse_finished

EXAMPLES = """\
$ biprune shrink runs/half --out runs/small
$ biprune shrink runs/f50 --out runs/f50-small
$ biprune shrink runs/own80 --model mymodels:net --input-shape 3x64x64 --out runs/own-small
In Python: small = biprune.load_small("runs/small")"""


def shrink_command(
    ticket: TicketFolder,
    out: options.Out,
    input_shape: InputShape = None,
    model: OwnModel = None,
    model_option: options.ModelOptions = None,
    force: options.Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Remove pruned units from a ticket's model, and save it if its outputs stay the same.

    With structure group, everything pruned goes. With other structures, what can go without
    changing the outputs does, and the certificate says how much that is.
    """
    from biprune import Certificate, save_small
    from biprune.core.files import claimed

    opened = open_ticket(ticket, model, model_option)
    if ticket.resolve() == out.resolve():
        raise ValueError(f"`--out` {str(out)!r} is the ticket itself. Choose another folder.")
    refuse_finished(out, force=force)
    inputs = sample_input(opened, input_shape)
    with claimed(out):
        small = opened.shrink(inputs)
        refuse_finished(out, force=force)
        folder = save_small(small, out)
    certificate = small.certificate
    assert isinstance(certificate, Certificate)
    if as_json:
        print_json({"folder": str(folder), "certificate": certificate.to_json()})
        return
    print_certificate(certificate, {"saved in": str(folder)})
    print_lines("", f"Next: biprune profile {ticket}{model_argument(model)}")
