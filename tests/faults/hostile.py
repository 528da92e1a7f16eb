"""Files made to do harm: a sentence, nothing followed, nothing raw on the terminal, no memory."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from biprune.files.artifact import read_artifact, write_artifact
from faults import graphs, originals
from faults.children import limit_memory, run
from faults.verdict import OK, Fault

MEMORY = 8 << 30  # of address space: torch alone maps more than 4 GB
ESCAPE = "\x1b[31mred\x1b]0;title\x07"


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _elsewhere(path: Path) -> None:
    """A link out of the folder, to what is a whole file."""
    target = originals.empty("elsewhere") / path.name
    shutil.move(path, target)
    path.symlink_to(target)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _nested(path: Path) -> None:
    path.write_text("[" * 200_000 + "]" * 200_000)


def _number(path: Path) -> None:
    """A number of more digits than Python converts."""
    path.write_text('{"format": ' + "9" * 100_000 + "}")


def _header(path: Path) -> None:
    """A safetensors header that says it is as long as a file can be."""
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")


def _sparse_gigabytes(path: Path) -> None:
    """A file of 200 GB that takes no room on the disk."""
    with path.open("r+b") as file:
        file.truncate(200 << 30)


def _other_bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe" + ESCAPE.encode() + b"\0" * 100)


WAYS: list[Callable[[Path], None]] = [
    _fifo,
    _endless,
    _elsewhere,
    _loop,
    _folder,
    _nested,
    _number,
    _header,
    _sparse_gigabytes,
    _other_bytes,
]
READERS = {
    "dense": ["inspect {0}", "prune {0} --sparsity 0.5 --epochs 1 --threads 1 --out {0}-new"],
    "ticket": ["inspect {0}", "inspect {0} --json", "profile {0} --rounds 1 --batches 1"],
    "grouped": ["inspect {0}", "shrink {0} --out {0}-new"],
    "small": ["inspect {0}"],
}


def in_an_artifact(seed: int) -> str:
    """Something else in the place of one of its files."""
    draw = random.Random(seed)
    kind, way = draw.choice(list(READERS)), draw.choice(WAYS)
    folder = _copy(kind)
    path = draw.choice([path for path in sorted(folder.rglob("*")) if path.is_file()])
    way(path)
    line = draw.choice(READERS[kind]).format(folder)
    is_read = path.parent == folder or not line.startswith("inspect")  # rounds are not inspected
    return _ended(2 if is_read else 0, f"{way.__name__[1:]} as {path.name} of a {kind}", line)


def in_a_store(seed: int) -> str:
    """Something else in the place of a record: it is named, and the others are shown."""
    draw = random.Random(seed)
    way = draw.choice(WAYS)
    folder = _copy("store")
    path = draw.choice(sorted(folder.glob("records/*.json")))
    way(path)
    done = run(f"report {folder} -o {folder}/page.html", partial(limit_memory, MEMORY))
    verdict = done.complaint(0, 2)
    if verdict == OK and path.name not in done.err + done.out:
        verdict = f"the record is not named: {done.err[-200:]}"
    return verdict if verdict == OK else f"{way.__name__[1:]} as a record: {verdict}"


def in_an_unfinished_run(seed: int) -> str:
    """Something else in the place of a checkpoint."""
    draw = random.Random(seed)
    way = draw.choice(WAYS)
    folder = originals.empty("hostile-run")
    unfinished = folder / "biprune-unfinished"
    unfinished.mkdir()
    checkpoint = unfinished / "train.checkpoint"
    checkpoint.write_bytes(b"x" * 1000)
    way(checkpoint)
    line = f"train resnet8 digits --width 2 --subset 60 --epochs 1 --threads 1 --out {folder}"
    return _ended(2, f"{way.__name__[1:]} as a checkpoint", line)


FORGED: dict[str, list[Any]] = {
    "model": [
        {"name": "resnet8", "width": 20_000, "in_channels": 1},
        {"name": "resnet8", "width": 10**12, "in_channels": 1},
        {"name": "resnet8", "width": -3},
        {"name": "resnet8", "num_classes": 10**9},
        {"name": ESCAPE},
        {"name": "os.system"},
        {"name": ["resnet8"]},
        {"width": 2},
        {"name": "resnet8", "width": "2"},
    ],
    "input_shape": [[10**6, 10**6], [-1], [1.5], ["8"], [10**9] * 8, [], [[1]]],
    "input_dtype": ["load", "__class__", "float3", ESCAPE, "int64"],
    "num_weights": [10**400, -1, True],
    "seed": [10**30, -1, True],
    "layers": [{"a": [10**9, 10**9]}, {ESCAPE: [1]}, {"stem.conv.weight": [-1]}, {"x": "y"}, {}],
    "structure": [ESCAPE, "999999999:1000000000", "0:0", "group", "weight "],
    "scope": [ESCAPE, "x", None],
    "method": [ESCAPE, "x" * 10_000],
    "history": [[{"note": ESCAPE}], [{"stage": ESCAPE, "epoch": 1}], [1], [{"epoch": 1}]],
    "settings": [{ESCAPE: ESCAPE}, {"epochs": ESCAPE}, {"a": [[[]]]}],
    "data": [{"name": "folder:/"}, {"name": ESCAPE}, {}, {"name": "digits", "root": 3}],
    "cost": [{"seconds": "x", "forward_passes": 0, "backward_passes": 0}, {"seconds": -1}, {}],
    "chosen": [{"include": ESCAPE}, {"include": 3}],
    "left_out": [{ESCAPE: ESCAPE}, {"a": 3}],
    "accuracy": [float("nan"), 10**400, 1e308],
    "groups": [{}, {"groups": []}, {"units": 10**9}, 3, {"groups": [{"slices": 10**9}]}],
    "certificate": [{}, {"kept": {"a": {"0": [10**12]}}}, {"kept": {}}],
    "rewind_epochs": [[10**9], ["x"], [ESCAPE], [-1]],
    "epochs": [-1, 10**18],
    "channels_last": [True],
}


def forged(seed: int) -> str:
    """A folder whose hashes are right, and whose metadata ask for harm."""
    draw = random.Random(seed)
    kind = draw.choice(list(READERS))
    folder = _copy(kind)
    written = kind.replace("grouped", "ticket")
    metadata, tensors = read_artifact(folder, written)
    own = {key: value for key, value in metadata.items() if key not in ("format", "version")}
    field = draw.choice([name for name in FORGED if name in own])
    own[field] = draw.choice(FORGED[field])
    shutil.rmtree(folder)
    try:
        write_artifact(folder, written, own, tensors)
    except ValueError:
        return OK  # such a value cannot even be written
    line = draw.choice(READERS[kind]).format(folder)
    done = run(line, partial(limit_memory, MEMORY))
    verdict = done.complaint(0, 2)
    if "Errno" in done.err:
        verdict = f"a raw error: {done.err[-200:]}"
    if verdict == OK and "--json" in line and done.code == 0:
        json.loads(done.out, parse_constant=_no_constant)
    told = f"{field} = {json.dumps(own[field])[:60]} in a {kind}, {line.split(' ')[0]}"
    return verdict if verdict == OK else f"{told}: {verdict}"


def _no_constant(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def _copy(kind: str) -> Path:
    folder = originals.empty(f"hostile-{kind}")
    shutil.rmtree(originals.scratch() / f"hostile-{kind}-new", ignore_errors=True)
    shutil.copytree(originals.made(kind), folder, dirs_exist_ok=True)
    return folder


def _ended(code: int, told: str, line: str) -> str:
    done = run(line, partial(limit_memory, MEMORY))
    verdict = done.complaint(code)
    return verdict if verdict == OK else f"{told}, {line.split(' ')[0]}: {verdict}"


FAULTS: dict[str, Fault] = {
    "hostile file in a result": in_an_artifact,
    "hostile file in a store": in_a_store,
    "hostile file as a checkpoint": in_an_unfinished_run,
    "forged result": forged,
    **graphs.FAULTS,
}
