"""Run studies, and print their tables: what is recorded is not run again.

python -m studies.run methods controls --root DATA --workers 2 --threads 1

Without a name it says what there is and how long it takes. Runs of scale laptop begin with a store
of all records of `archive`, whose `pack` takes in the new.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

from biprune.cli.device import use_machine
from biprune.cli.sweeps import print_results, run_sweep
from biprune.experiments.costs import SPEEDS, Scale, estimate
from biprune.experiments.runner import Runner
from biprune.experiments.store import Store
from biprune.report.compare import stored_records
from studies.archive import unpack
from studies.presets import STUDIES


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(STUDIES))
    parser.add_argument("--scale", choices=get_args(Scale), default="laptop")
    parser.add_argument("--root", type=Path, help="folder of the data's files")
    parser.add_argument("--store", type=Path, default=Path("runs/studies"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in STUDIES]:
        parser.error(f"unknown study {unknown[0]!r}; there are {', '.join(STUDIES)}")
    if not options.names:
        for name, study in STUDIES.items():
            cost = estimate(study.specs(options.scale))
            print(f"{name}: {study.summary}; {cost.time(SPEEDS[options.scale])}")
        return
    use_machine(options.threads)
    store = Store(options.store)
    if options.scale == "laptop":
        unpack(store)
    specs = [spec for name in options.names for spec in STUDIES[name].specs(options.scale)]
    runner = Runner(store, root=options.root)
    runner.check_data(specs)
    run_sweep(specs, runner, options.workers)
    print_results(stored_records(specs, store), None, as_json=False)


if __name__ == "__main__":
    main()
