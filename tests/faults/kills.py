"""Signals at any time: nothing saved is lost, and the same command again ends alike."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import cache, partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from biprune.experiments.store import Store
from faults import originals
from faults.children import (
    LIMIT_SECONDS,
    MARK,
    Child,
    Done,
    end_at_swap,
    left_behind,
    read_what_is_there,
    run,
)
from faults.jobs import finished, jobs, reference
from faults.verdict import OK, Fault, content, unmeasured

ENDED = (0, 130, 143)  # by Ctrl-C or SIGTERM, or before it came
ORPHAN_SECONDS = 15.0


def at_any_time(seed: int) -> str:
    """SIGKILL once to three times at random moments, then to the end."""
    draw = random.Random(seed)
    name = draw.choice(list(jobs()))
    out = originals.empty("killed")
    for _ in range(draw.randint(1, 3)):
        with Child(jobs()[name].into(out)) as child:
            child.wait(draw.uniform(0, 1.2 * reference(name).seconds))
            child.signal(signal.SIGKILL)
            child.wait()
    return _said(name, finished(name, out))


def at_a_swap(seed: int) -> str:
    """SIGTERM or SIGKILL just before or after a file is swapped, also over an older result."""
    draw = random.Random(seed)
    name, number = draw.choice(list(jobs())), draw.choice([signal.SIGTERM, signal.SIGKILL])
    force, after = draw.random() < 0.5, draw.random() < 0.5
    wanted, job, out = reference(name), jobs()[name], originals.empty("swapped")
    allowed = [wanted.result]
    if force:
        older = reference(name, 1)
        shutil.copytree(originals.scratch() / f"{name}-1", out, dirs_exist_ok=True)
        allowed.append(older.result)
    count = draw.randint(1, wanted.swaps + 1)
    done = run(job.into(out, force=force), partial(end_at_swap, count, number, after))
    told = f"{name}, {signal.Signals(number).name} at swap {count}{' over a result' * force}"
    codes = (0, -signal.SIGKILL) if number == signal.SIGKILL else ENDED
    if (wrong := done.complaint(*codes)) != OK:
        return _said(told, wrong)
    if force:
        try:
            found = job.read(out)
        except Exception as error:
            return _said(told, f"the older result is lost: {error}")
        if found not in allowed:
            return _said(told, "the folder holds neither the older nor the new result")
    return _said(told, finished(name, out, force=force))


def _said(what: str, verdict: str) -> str:
    return verdict if verdict == OK else f"{what}: {verdict}"


COMPARE = (
    "compare resnet8 digits --width 2 --subset 60 --sparsities 0.5,0.6 --seeds 0,1 --passes 4 "
    "--dense-epochs 2 --method bip --threads 1 --store "
)


def records_in(store: Path) -> dict[str, Any]:
    return {r.key: unmeasured(content(r.model_dump(mode="json"))) for r in Store(store)}


@cache
def compared() -> dict[str, Any]:
    store = originals.empty("compared")
    run(COMPARE + str(store))
    return records_in(store)


def in_a_sweep(seed: int) -> str:
    """A signal to a sweep of two workers or to one of them: no orphan, and all is recorded."""
    draw = random.Random(seed)
    target, number = draw.choice(
        [("sweep", signal.SIGKILL), ("sweep", signal.SIGTERM), ("worker", signal.SIGKILL)]
    )
    wanted, store, mark = compared(), originals.empty("swept"), uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "biprune", *(COMPARE + str(store)).split(), "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, MARK: mark},
    )
    try:
        told = f"{signal.Signals(number).name} to a {target}"
        done = _interrupted(process, mark, number, target, draw)
        if target == "sweep" and (alive := _orphans(mark)):
            return _said(told, f"{len(alive)} processes live on")
        allowed = (0,) if target == "worker" else (*ENDED, -signal.SIGKILL)
        if (wrong := done.complaint(*allowed)) != OK:
            return _said(told, wrong)
    finally:
        for pid in left_behind(mark):
            os.kill(pid, signal.SIGKILL)
        process.communicate()
    if (wrong := run(COMPARE + str(store)).complaint(0)) != OK:
        return _said(told, f"the same command again: {wrong}")
    return OK if records_in(store) == wanted else f"{told}: other records than undisturbed"


def _interrupted(
    process: subprocess.Popen[bytes], mark: str, number: int, target: str, draw: random.Random
) -> Done:
    """Send the signal at a random moment once both workers live."""
    deadline = time.monotonic() + LIMIT_SECONDS
    workers: list[int] = []
    while process.poll() is None and time.monotonic() < deadline:
        workers = [pid for pid in left_behind(mark) if _is_worker(pid)]
        if len(workers) == 2:
            break
        time.sleep(0.05)
    time.sleep(draw.uniform(0, 4))
    pid = process.pid if target == "sweep" else draw.choice(workers or [process.pid])
    if process.poll() is None:
        os.kill(pid, number)
    try:
        code = process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        code = sys.maxsize
    return Done(code, read_what_is_there(process.stdout), read_what_is_there(process.stderr), 0.0)


def _is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _orphans(mark: str) -> list[int]:
    deadline = time.monotonic() + ORPHAN_SECONDS
    while (alive := left_behind(mark)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return alive


FAULTS: dict[str, Fault] = {
    "SIGKILL at any time": at_any_time,
    "SIGTERM or SIGKILL at a file swap": at_a_swap,
    "a sweep or its worker killed": in_a_sweep,
}
