"""Commands at the same time: one writer, whole reads, nobody's success lost."""

from __future__ import annotations

import random
import time
from typing import Any

from faults import originals
from faults.children import Child, Done, run
from faults.jobs import jobs, reference
from faults.kills import COMPARE, compared, records_in
from faults.verdict import OK, Fault


def _both(one: str, other: str, apart: float) -> list[Done]:
    """Two commands, the other begun `apart` seconds later."""
    with Child(one) as first:
        time.sleep(apart)
        with Child(other) as second:
            ended = first.wait(), second.wait()
    return [done or Done(-1, "", "it does not end", 0.0) for done in ended]


def two_writers(seed: int) -> str:
    """Two seeds of a job into one folder: who reports success has its result there."""
    draw = random.Random(seed)
    name, force = draw.choice(["train", "bip-plus", "imp", "group"]), draw.random() < 0.5
    wanted = [reference(name, number).result for number in (0, 1)]
    out = originals.empty("shared")
    lines = [jobs()[name].into(out, force=force, seed=number) for number in (0, 1)]
    ended = _both(*lines, apart=draw.uniform(0, 1.2 * reference(name).seconds))
    for done in ended:
        if (wrong := done.complaint(0, 2)) != OK:
            return f"{name}: {wrong}"
    happy = [result for result, done in zip(wanted, ended, strict=True) if done.code == 0]
    if not happy:
        return f"{name}: neither wrote: {ended[0].err[-200:]} {ended[1].err[-200:]}"
    if len(happy) == 2 and not force:
        return f"{name}: both reported success, and one result is gone"
    # With --force one may come right after the other, and replace what that has saved.
    return OK if jobs()[name].read(out) == happy[-1] else f"{name}: the result is another's"


def a_reader(seed: int) -> str:
    """A result read over and over while another replaces it is the older or the new one."""
    draw = random.Random(seed)
    name = draw.choice(["train", "imp"])
    allowed = [reference(name, number).result for number in (0, 1)]
    out, job = originals.empty("read"), jobs()[name]
    run(job.into(out))
    seen: list[Any] = []
    with Child(job.into(out, force=True, seed=1)) as child:
        while child.process.is_alive():
            try:
                seen.append(job.read(out))
            except Exception as error:
                return f"{name}: nothing to read: {error}"
    return OK if all(result in allowed for result in seen) else f"{name}: a mixture was read"


def two_sweeps(seed: int) -> str:
    """The same comparison twice into one store: each run is done once, and both show all."""
    draw, store = random.Random(seed), originals.empty("twice")
    line = COMPARE + str(store)
    for done in _both(line, line, apart=draw.uniform(0, 1)):
        if (wrong := done.complaint(0)) != OK:
            return wrong
    return OK if records_in(store) == compared() else "other records than of one sweep"


FAULTS: dict[str, Fault] = {
    "two writers of a folder": two_writers,
    "a reader while a result is replaced": a_reader,
    "two sweeps of a store": two_sweeps,
}
