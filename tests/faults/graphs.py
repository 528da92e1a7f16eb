"""Graphs whose hashes are right, and that a stranger wrote: refused, or read at once."""

from __future__ import annotations

import json
import random
import time
from typing import Any

from biprune.files.artifact import read_artifact
from biprune.structured.written import from_data
from faults import originals
from faults.mutations import places_in
from faults.verdict import OK, Fault, refusal

EACH = 5  # graphs a seed
SOON = 10.0  # seconds
VALUES: list[Any] = [
    *(
        None,
        True,
        -1,
        0,
        2,
        10**9,
        10**30,
        1.5,
        float("inf"),
        "",
        "x",
        "\x1b[31m",
        [],
        [0],
        [10**9],
    ),
    *({}, {"node": 0}, {"node": -1}, {"node": 10**9}, {"dtype": "int8"}, {"dtype": "load"}),
    *({"device": "cuda"}, {"layout": "sparse_coo"}, [[1, 1, ""]], "lambda", "print(1)", "a.class"),
]
OPERATIONS = (
    *("aten.zeros.default", "aten.split.Tensor", "aten.embedding.default", "aten.add_.Tensor"),
    *("aten.from_file.default", "aten.repeat.default", "aten.expand.default", "os.system.default"),
    *("pow", "mul", "mod", "getitem", "sym_max", "aten.reshape.default", "aten.unbind.int"),
)


def forged(seed: int) -> str:
    """Other values, operations and arguments in some places of a graph."""
    metadata, tensors = read_artifact(originals.made("graph"), "small")
    draw = random.Random(seed)
    for _ in range(EACH):
        data = json.loads(json.dumps(metadata["graph"]))
        for _ in range(draw.randint(1, 3)):
            _forge(data, draw)
        began = time.monotonic()
        try:
            from_data(data, tensors)
        except Exception as error:
            if (verdict := refusal(error)) != OK:
                return verdict
        if (seconds := time.monotonic() - began) > SOON:
            return f"reading takes {seconds:.0f} s"
    return OK


def _forge(data: dict[str, Any], draw: random.Random) -> None:
    what, nodes = draw.random(), data["nodes"]
    if what < 0.2:
        arguments = [draw.choice(VALUES) for _ in range(draw.randint(0, 3))]
        nodes.insert(-1, ["call_function", draw.choice(OPERATIONS), arguments, {}])
        return
    # Whole fields are kept, for what takes their place is seldom looked into.
    inside = [(holder, key) for holder, key in places_in(data) if holder is not data]
    holder, key = draw.choice(inside)
    if what < 0.3:
        del holder[key]
    elif what < 0.5:
        holder[key] = draw.choice(OPERATIONS)
    else:
        holder[key] = json.loads(json.dumps(draw.choice(VALUES)))


FAULTS: dict[str, Fault] = {"forged graph": forged}
