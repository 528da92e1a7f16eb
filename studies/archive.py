"""The records of the studies, compressed: a file for each study, a line for each run.

python -m studies.archive pack runs/studies
python -m studies.archive unpack runs/studies

`pack` takes in the finished runs of a store folder, `unpack` fills one with what is packed.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from biprune.core.files import write_bytes
from biprune.experiments.record import RunRecord, covered_by
from biprune.experiments.store import Store
from studies.presets import STUDIES

FOLDER = Path(__file__).with_name("records")
SUFFIX = ".jsonl.gz"

Records = Mapping[str, RunRecord]  # by their keys
Document = dict[str, Any]  # a record as JSON


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=["pack", "unpack"])
    parser.add_argument("store", type=Path)
    options = parser.parse_args()
    action = pack if options.action == "pack" else unpack
    print(f"{action(Store(options.store))} records")


def load(folder: Path = FOLDER) -> dict[str, RunRecord]:
    """All records in the order of their keys, without those of defaults that have changed since."""
    documents = {key: found for file in _files(folder) for key, found in read(file).items()}
    records = {key: RunRecord.model_validate(documents[key]) for key in sorted(documents)}
    return {key: record for key, record in records.items() if record.key == key}


def unpack(store: Store, folder: Path = FOLDER) -> int:
    """Put all records into a store, but for those that it has; how many they are."""
    missing = [record for record in load(folder).values() if store.get(record.spec) is None]
    for record in missing:
        store.put(record)
    return len(missing)


def pack(store: Store, folder: Path = FOLDER) -> int:
    """Take in what a store has finished of the studies; how many records are new or have changed.

    A record is filed under the first study that it belongs to, and stays there.
    """
    packed = {file.name.removesuffix(SUFFIX): read(file) for file in _files(folder)}
    homes = studies_of_keys() | {key: study for study in packed for key in packed[study]}
    changed: dict[str, dict[str, Document]] = {}
    for record in store:
        study = homes.get(record.key)
        if study is None or record.status != "done":
            continue
        document = record.model_dump(mode="json")
        if packed.get(study, {}).get(record.key) != document:
            changed.setdefault(study, {})[record.key] = document
    for study, documents in changed.items():
        write(folder / f"{study}{SUFFIX}", packed.get(study, {}) | documents)
    return sum(map(len, changed.values()))


def studies_of_keys() -> dict[str, str]:
    """The first study of each run, and of those it starts from or passes."""
    homes: dict[str, str] = {}
    for name, study in STUDIES.items():
        for spec in study.specs("laptop"):
            for own in (spec, spec.dense_spec, *covered_by(spec)):
                homes.setdefault(own.key, name)
    return homes


def read(file: Path) -> dict[str, Document]:
    """The records of a file by the keys that they were written under."""
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    return dict(json.loads(line) for line in lines)


def write(file: Path, documents: Mapping[str, Document]) -> None:
    """Write `[key, record]` a line, by key and without a date: the same records, the same bytes."""
    lines = [json.dumps([key, documents[key]], separators=(",", ":")) for key in sorted(documents)]
    write_bytes(file, gzip.compress("".join(f"{line}\n" for line in lines).encode(), 9, mtime=0))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"*{SUFFIX}"))


if __name__ == "__main__":
    main()
