"""Records in a folder: one file a run, whole or not there, shared by many processes."""

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
    """The records of runs, the dense models that they share, and the states of unfinished ones."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)

    def get(self, spec: RunSpec) -> RunRecord | None:
        """The record of `spec`, if it has run.

        An error if the stored run had another value of some setting that today's spec leaves to
        its default: the default has changed, and the key has not.
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
        """Write a record, in place of an older one of the same run."""
        write_document(self._record_path(record.key), record.model_dump(mode="json"))

    def __iter__(self) -> Iterator[RunRecord]:
        """Every sound record, in the order of the keys, made with defaults of today.

        Runs of past defaults would be others today: they have other keys than their files are named
        by. Damaged records are listed in a warning, with what is wrong with each.
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
        """What a process holds while it runs `spec`; the system releases it if the process dies."""
        return FileLock(writable_folder(self.folder / "locks") / f"{spec.key}.lock")

    def dense_folder(self, spec: RunSpec) -> Path:
        """Where the model of a dense run is kept for the runs that start from it."""
        return self.folder / "dense" / spec.key

    def checkpoint_folder(self, spec: RunSpec) -> Path:
        """Where an unfinished run keeps its state."""
        return self.folder / "unfinished" / spec.key

    def forget_checkpoint(self, spec: RunSpec) -> None:
        """Drop the state of a run that has ended."""
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
    """Names that both have with other values; a name that one of them lacks came or went since."""
    for name in stored.keys() & current.keys():
        was, now = stored[name], current[name]
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _differences(was, now, f"{prefix}{name}.")
        elif was != now:
            yield prefix + name, was, now
