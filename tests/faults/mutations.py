"""Damage to files that biprune wrote: refused by name, or read as they were."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import biprune
from biprune.experiments.store import Store
from biprune.files.small import load_small
from faults import originals
from faults.verdict import OK, Fault, content, refusal, unmeasured

ODD_VALUES = (None, True, -1, 0, 10**30, 1e308, float("nan"), "", "x", "\x1b[31m", [], {}, [[]])


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Other bytes than `data`, by one of the ways in which files come to harm."""
    ways = [_bit, _byte, _digit, _cut, _grown, _zeroed, _removed, _repeated, _exchanged, _value]
    while (found := draw.choice(ways)(data, draw)) == data:
        pass
    return found


def _bit(data: bytes, draw: random.Random) -> bytes:
    place = draw.randrange(len(data))
    return _with(data, place, data[place] ^ 1 << draw.randrange(8))


def _byte(data: bytes, draw: random.Random) -> bytes:
    return _with(data, draw.randrange(len(data)), draw.randrange(256))


def _digit(data: bytes, draw: random.Random) -> bytes:
    """Another digit in the text: valid JSON that says something else."""
    digits = [place for place, byte in enumerate(data) if byte in b"0123456789"]
    return _with(data, draw.choice(digits), draw.choice(b"0123456789")) if digits else data


def _with(data: bytes, place: int, byte: int) -> bytes:
    return data[:place] + bytes([byte]) + data[place + 1 :]


def _cut(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def _grown(data: bytes, draw: random.Random) -> bytes:
    return data + draw.randbytes(draw.randint(1, 64))


def _block(data: bytes, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(data))
    return start, min(len(data), start + draw.choice([1, 2, 8, 64, 512, 4096]))


def _zeroed(data: bytes, draw: random.Random) -> bytes:
    """As after a crash of the machine, when a block was not written."""
    start, end = _block(data, draw)
    return data[:start] + bytes(end - start) + data[end:]


def _removed(data: bytes, draw: random.Random) -> bytes:
    start, end = _block(data, draw)
    return data[:start] + data[end:]


def _repeated(data: bytes, draw: random.Random) -> bytes:
    start, end = _block(data, draw)
    return data[:end] + data[start:end] + data[end:]


def _exchanged(data: bytes, draw: random.Random) -> bytes:
    one, other = sorted(draw.randrange(len(data)) for _ in range(2))
    return _with(_with(data, one, data[other]), other, data[one])


def _value(data: bytes, draw: random.Random) -> bytes:
    """JSON with one value replaced or left out, written as we write it."""
    try:
        document = json.loads(data)
    except ValueError:
        return data
    places = list(places_in(document))
    if not places:
        return data
    holder, key = draw.choice(places)
    if draw.random() < 0.3:
        del holder[key]
    else:
        holder[key] = draw.choice(ODD_VALUES)
    return json.dumps(document, indent=1).encode() + b"\n"


def places_in(document: Any) -> Iterator[tuple[Any, Any]]:
    keys = document if isinstance(document, dict) else range(len(document))
    for key in keys:
        yield document, key
        if isinstance(document[key], (dict, list)):
            yield from places_in(document[key])


@contextmanager
def harmed(folder: Path, draw: random.Random, other: Path | None = None) -> Iterator[Path]:
    """One file of `folder` damaged, taken away or replaced by the `other` folder's; then mended."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = draw.choice(files)
    data = path.read_bytes()
    theirs = other and other / path.relative_to(folder)
    what = draw.random()
    if what < 0.02:
        path.unlink()
    elif what < 0.05 and theirs and theirs.exists():
        shutil.copyfile(theirs, path)
    else:
        path.write_bytes(damaged(data, draw))
    try:
        yield path
    finally:
        path.write_bytes(data)


def of_artifacts(kind: str, load: Callable[[Path], Any]) -> Fault:
    """Damage to a folder: the load is refused with its name, or gives what was saved."""

    @cache
    def whole() -> tuple[Path, Path, Any]:
        folder, other = originals.made(kind), originals.made(kind, 1)
        return folder, other, content(load(folder))

    def fault(seed: int) -> str:
        folder, other, original = whole()
        with harmed(folder, random.Random(seed), other) as path:
            try:
                found = content(load(folder))
            except Exception as error:
                return refusal(error, folder)
        return OK if found == original else f"other content was read from a damaged {path.name}"

    return fault


@cache
def _records() -> tuple[Path, Path, dict[str, Any]]:
    folder, other = originals.made("store"), originals.made("store", 1)
    return folder, other, {record.key: record for record in Store(folder)}


def of_records(seed: int) -> str:
    """A damaged record is refused or passed over; no other result is ever shown."""
    folder, other, originals_ = _records()
    with harmed(folder / "records", random.Random(seed), other / "records") as path:
        try:
            found = list(Store(folder))
            found += [r for one in originals_.values() if (r := Store(folder).get(one.spec))]
        except Exception as error:
            return refusal(error, folder)
    wrong = [record.key for record in found if record != originals_.get(record.key)]
    return f"another result was read from the damaged {path.name}" if wrong else OK


@cache
def _run() -> tuple[Path, Path, Any]:
    folder, other = originals.made("unfinished"), originals.made("unfinished", 1)
    return folder, other, unmeasured(content(originals.train_on(None, 0)))


def of_checkpoints(seed: int) -> str:
    """A run that finds its checkpoint damaged refuses it, or ends with the undisturbed bits."""
    folder, other, wanted = _run()
    work = originals.empty("resumed")
    shutil.copytree(folder, work, dirs_exist_ok=True)
    with harmed(work, random.Random(seed), other) as path:
        try:
            found = unmeasured(content(originals.train_on(work, 0)))
        except Exception as error:
            return refusal(error, work)
    return OK if found == wanted else f"another network came of the damaged {path.name}"


FAULTS: dict[str, Fault] = {
    "damaged ticket": of_artifacts("ticket", biprune.load_ticket),
    "damaged ticket of groups": of_artifacts("grouped", biprune.load_ticket),
    "damaged dense run": of_artifacts("dense", biprune.load_dense),
    "damaged small model": of_artifacts("small", load_small),
    "damaged graph": of_artifacts("graph", load_small),
    "damaged record": of_records,
    "damaged checkpoint": of_checkpoints,
}
