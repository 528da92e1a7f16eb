"""What works on which architecture, biprune's stages and Torch-Pruning beside them.

python benchmarks/zoo.py --jsonl docs/results/zoo.jsonl --page docs/models.md

Each architecture runs in processes of its own, within limits of time and memory. What the file
has is not run again, unless `--again` names it; one line each, sorted. `--page` fills the tables of
a page from the file; with `--no-run` that is all. Needs the extra: pip install -e '.[onnx,zoo]'.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from datetime import UTC, datetime
from fnmatch import fnmatch
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

import zoo_peer
import zoo_stages
from biprune.core.files import write_text
from biprune.experiments.environment import environment, revision
from zoo_models import torchvision, zoo
from zoo_page import filled, places
from zoo_stages import STAGES

PACKAGES = ("timm", "torchvision", "transformers", "torch-pruning")
MACHINE = ("torch", "python", "processor", "cores", "revision")
PATIENCE = 8  # how much longer a process may last than its processor time, on a busy machine
FORK = multiprocessing.get_context("fork")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jsonl", type=Path, metavar="FILE")
    parser.add_argument("--page", type=Path, metavar="FILE")
    parser.add_argument("--no-run", action="store_true", help="only write the page")
    parser.add_argument("--again", nargs="*", default=[], help="names to run again, with * and ?")
    parser.add_argument("--only", nargs="*", default=["*"], help="names to run, with * and ?")
    parser.add_argument(
        "--seconds", type=float, default=240, help="of a processor, for one architecture"
    )
    parser.add_argument("--peer-seconds", type=float, default=60, help="the same for Torch-Pruning")
    parser.add_argument("--gigabytes", type=float, default=12, help="of memory for one process")
    options = parser.parse_args()
    if options.jsonl is None:
        parser.error("--jsonl is missing: the file that holds the results")
    if not options.no_run:
        run_all(options)
    if options.page:
        text = options.page.read_text(encoding="utf-8")
        write_text(options.page, filled(text, places(records(options.jsonl))))


def run_all(options: argparse.Namespace) -> None:
    warm_up()
    done = {record["model"] for record in records(options.jsonl)}
    done = {name for name in done if not any(fnmatch(name, each) for each in options.again)}
    wanted = [name for name in zoo() if any(fnmatch(name, each) for each in options.only)]
    left = [name for name in wanted if name not in done]
    for number, name in enumerate(left, start=1):
        start = time.perf_counter()
        record = {"model": name, **in_process(name, "ours", options)}
        record |= in_process(name, "peer", options)
        made = environment()
        record |= {key: made[key] for key in MACHINE}
        record |= {package: version(package) for package in PACKAGES}
        record["date"] = datetime.now(UTC).date().isoformat()
        add(options.jsonl, record)
        failed = [stage for stage, figures in record.items() if failed_at(figures)]
        took = time.perf_counter() - start
        print(f"{number}/{len(left)} {name} {took:.0f} s {' '.join(failed) or 'all'}", flush=True)


def warm_up() -> None:
    """Import what every process needs, once: they are forked from this one."""
    torch.set_num_threads(1)
    torchvision()
    for package in ("timm", "transformers", "torch_pruning", "onnxruntime", "onnxscript"):
        import_module(package)
    revision()


def failed_at(figures: Any) -> bool:
    return isinstance(figures, dict) and "error" in figures


def records(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def add(file: Path, record: dict[str, Any]) -> None:
    """Put a record in its place, and take out an older one of the same model."""
    others = [each for each in records(file) if each["model"] != record["model"]]
    every = sorted([*others, record], key=lambda each: each["model"])
    lines = [json.dumps(each, separators=(",", ":")) + "\n" for each in every]
    write_text(file, "".join(lines))


def in_process(name: str, side: str, options: argparse.Namespace) -> dict[str, Any]:
    """What one side reports of a model until it ends or is ended."""
    seconds = options.seconds if side == "ours" else options.peer_seconds
    stages = STAGES if side == "ours" else ("peer",)
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8") as said:
        process = FORK.Process(
            target=run_here, args=(name, side, seconds, options.gigabytes, said.name)
        )
        process.start()
        process.join(PATIENCE * seconds)
        code = process.exitcode
        ended = f"the process ended with code {code}" if code else ""
        if code is None:
            process.kill()
            process.join()
        if code in (None, -signal.SIGXCPU):
            ended = f"time limit {seconds:.0f} s"
        found: dict[str, Any] = {}
        for line in Path(said.name).read_text(encoding="utf-8").splitlines():
            found |= json.loads(line)
    if ended:
        found[next(stage for stage in (*stages, "end") if stage not in found)] = {"error": ended}
    return found


def run_here(name: str, side: str, seconds: float, gigabytes: float, file: str) -> None:
    """One side of one model, each stage a line of the file."""
    warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = {
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime + seconds) + 1,
        resource.RLIMIT_AS: int(gigabytes * 1e9),
    }
    for limit, most in limits.items():
        resource.setrlimit(limit, (most, resource.RLIM_INFINITY))

    def report(stage: str, figures: Any) -> None:
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({stage: figures}) + "\n")

    (zoo_stages if side == "ours" else zoo_peer).run(zoo()[name], report)


if __name__ == "__main__":
    main()
