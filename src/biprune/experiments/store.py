"""Records in a folder, one file a run, shared by many processes; a file is whole or not there."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import ValidationError

from biprune.core.documents import read_document, write_document
from biprune.core.files import first_line, printable, writable_folder
from biprune.experiments.record import RunRecord, RunSpec
from biprune.training.checkpoint import UNFIT

logger = logging.getLogger(__name__)


class Store:
    """The records of runs, the dense models they share, and checkpoints of unfinished runs."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def get(self, spec: RunSpec) -> RunRecord | None:
        """The record of `spec`; None if it has not run.

        Raises:
            ValueError: The file is damaged, or a default has changed since the run and the key has
                not: the run had another value of a setting that `spec` leaves at its default.
        """
        path = self._record_path(spec.key)
        try:
            record = _read(path)
        except FileNotFoundError:
            return None
        for name, was, now in _differences(record.resolved, spec.resolved):
            raise ValueError(
                f"The record {str(path)!r} is of another run: its {name} was {was!r}, now it is "
                f"{now!r}. A default has changed: raise the method's `settings_version`, or use "
                "another store."
            )
        return record

    def put(self, record: RunRecord) -> None:
        """Write a record, replacing an older one of the same run."""
        write_document(self._record_path(record.key), record.model_dump(mode="json"))

    def __iter__(self) -> Iterator[RunRecord]:
        """Every sound record of today's defaults, in the order of the keys.

        A record made with other defaults has a key that its file is not named by, and is left out
        with a warning. So is a damaged one, with what is wrong.
        """
        past = 0
        for path in sorted(self.folder.glob("records/*.json")):
            try:
                record = _read(path)
            except FileNotFoundError:
                continue  # just deleted
            except ValueError as error:
                logger.warning("%s It is left out.", error)
                continue
            if record.key == path.stem:
                yield record
            else:
                past += 1
        if past:
            logger.warning(
                "%d records in %r were made with defaults that have changed since, and are left "
                "out.",
                past,
                str(self.folder),
            )

    def lock(self, spec: RunSpec) -> FileLock:
        """The lock that a process holds while it runs `spec`; the system frees it if that dies."""
        return FileLock(writable_folder(self.folder / "locks") / f"{spec.key}.lock")

    def dense_folder(self, spec: RunSpec) -> Path:
        """Where the model of a dense run is kept for the runs that start from it."""
        return self.folder / "dense" / spec.key

    def checkpoint_folder(self, spec: RunSpec) -> Path:
        """Where an unfinished run keeps its checkpoints."""
        return self.folder / "unfinished" / spec.key

    def forget_checkpoint(self, spec: RunSpec) -> None:
        """Drop the checkpoints of a run that has ended."""
        shutil.rmtree(self.checkpoint_folder(spec), ignore_errors=True)

    def _record_path(self, key: str) -> Path:
        return self.folder / "records" / f"{key}.json"


def _read(path: Path) -> RunRecord:
    try:
        return RunRecord.model_validate(read_document(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = printable(".".join(map(str, first["loc"]))) or "its contents"
        raise ValueError(
            f"{str(path)!r} cannot be read as a record: {where}: {printable(first['msg'])}. Delete "
            "it to run it again."
        ) from None
    except UNFIT as error:  # methods raise TypeErrors of settings of another type
        text = str(error) if type(error) is ValueError else f"{str(path)!r}: {first_line(error)}."
        raise ValueError(f"{text} Delete it to run it again.") from None


def _differences(
    stored: Mapping[str, Any], current: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Names that both have, with different values; others are new settings, or were removed."""
    for name in stored.keys() & current.keys():
        was, now = stored[name], current[name]
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _differences(was, now, f"{prefix}{name}.")
        elif was != now:
            yield prefix + name, was, now
