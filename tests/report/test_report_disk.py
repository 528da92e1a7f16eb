"""Records, pages and figures on a disk that is full."""

from __future__ import annotations

import pytest

from biprune.experiments.store import Store
from biprune.report import write_report
from disks import SmallDisk
from hand_records import dense, epochs, seeds


def test_records_and_figures_onto_a_full_disk(small_disk: SmallDisk) -> None:
    store = Store(small_disk.folder)
    written = [dense(), *seeds("bip", 0.9, 91.0, 92.0)]
    for record in written:
        store.put(record)
    larger = written[1].model_copy(update={"history": epochs(loss=[0.5] * 5000)})
    with pytest.raises(OSError, match=r"Cannot write '.*json': No space left on device"):
        store.put(larger)
    assert list(store) == sorted(written, key=lambda record: record.key)
    for figures in (None, small_disk.folder / "figures"):
        with pytest.raises(OSError, match=r"Cannot write '.*(html|png|svg)': No space left"):
            write_report(written, small_disk.folder / "report.html", figures=figures)
        small_disk.enlarge(1500)
    assert not any(path.name.endswith(".biprune") for path in small_disk.folder.rglob("*"))
