"""Commands on files that others write, that are hostile, or that do not fit on the disk."""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import biprune
from biprune.cli.printing import print_facts, print_lines, print_table
from biprune.core.documents import read_document, write_document
from biprune.files.artifact import METADATA_FILE, UNFINISHED, read_metadata
from command_line import TINY, Run, one_error
from disks import SmallDisk

ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e[bold]"


@pytest.fixture(scope="module")
def saved_ticket(dense: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ticket") / "run"
    start, data = biprune.load_dense(dense), biprune.load_data("digits", subset=200)
    return biprune.prune(start, data, "omp", sparsity=0.5, epochs=1).save(folder)


@pytest.fixture
def ticket(saved_ticket: Path, tmp_path: Path) -> Path:
    """A copy, to be changed."""
    return biprune.load_ticket(saved_ticket).save(tmp_path / "copy")


@contextmanager
def another_run(folder: Path) -> Iterator[None]:
    """A process that writes into `folder` meanwhile."""
    script = (
        "import sys; from biprune.core.files import claimed\n"
        "with claimed(sys.argv[1]): print('at it', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "at it\n"
        yield
        assert other.stdin is not None
        other.stdin.close()


def test_a_second_run_into_a_folder_is_refused(
    run: Run, dense: Path, saved_ticket: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    lines = [
        f"train resnet8 digits {TINY} --force --out {out}",
        f"prune {dense} --method omp --sparsity 0.5 --epochs 1 --out {out}",
        f"shrink {saved_ticket} --out {out}",
        f"demo --epochs 1 --out {out}",
    ]
    with another_run(out):
        for line in lines:
            message = one_error(run(line))
            assert f"Another run of biprune is writing into {str(out)!r}" in message
            assert "Wait until it has ended, or choose another folder." in message
        with pytest.raises(OSError, match="Another run of biprune is writing into"):
            biprune.load_ticket(saved_ticket).save(out)
    assert list(out.iterdir()) == []
    assert run(lines[0])[0] == 0


def test_of_two_runs_into_a_folder_one_reports_success(tmp_path: Path) -> None:
    out = tmp_path / "out"
    line = f"train resnet8 digits --width 4 --subset 400 --epochs 8 --out {out} --json --seed "
    start = [sys.executable, "-m", "biprune", *shlex.split(line)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [*start, seed],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for seed in ("1", "2")
    ]
    outputs = [process.communicate() for process in running]
    assert sorted(process.returncode for process in running) == [0, 2]
    (printed,) = (out for out, _ in outputs if out)
    assert json.loads(printed) == read_metadata(out)
    refused = "".join(err for out, err in outputs if not out)
    assert "Another run of biprune is writing" in refused or "already holds a finished" in refused


def test_a_result_that_came_meanwhile_is_not_replaced(
    run: Run, dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, train = tmp_path / "out", biprune.train

    @wraps(train)
    def slow(*arguments: Any, **options: Any) -> biprune.TrainResult:
        trained = train(*arguments, **options)
        if not (out / METADATA_FILE).exists():
            (out / METADATA_FILE).write_text("of somebody who knows no locks")
        return trained

    monkeypatch.setattr(biprune, "train", slow)
    line = f"train resnet8 digits {TINY} --out {out}"
    assert "already holds a finished result" in one_error(last_line(run(line)))
    assert (out / METADATA_FILE).read_text() == "of somebody who knows no locks"
    assert (out / UNFINISHED / "train.checkpoint").exists()
    code, _, err = run(f"{line} --force")
    assert (code, err) == (0, "")  # no epoch is trained again
    assert read_metadata(out)["tensors"] == read_metadata(dense)["tensors"]


def last_line(result: tuple[int, str, str]) -> tuple[int, str, str]:
    """Without the progress before an error."""
    code, out, err = result
    return code, out, err.splitlines(keepends=True)[-1]


def rewritten(folder: Path, **changes: object) -> None:
    path = folder / METADATA_FILE
    write_document(path, {**read_document(path), **changes})


def test_no_escape_sequence_reaches_the_terminal(run: Run, ticket: Path, dense: Path) -> None:
    rewritten(
        ticket,
        method=ESCAPE,
        settings={ESCAPE: ESCAPE},
        model={"name": ESCAPE},
        data={"name": ESCAPE, "seed": ESCAPE},
        history=[
            {"stage": ESCAPE, "epoch": 1, "loss": 1.0},
            {"stage": ESCAPE, "note": f"{ESCAPE}\nerror: forged"},
        ],
    )
    code, out, err = run(f"inspect {ticket}")
    assert code == 0
    assert r"\x1b]0;owned\x07\x1b[2J\u202e[bold]" in out
    for line in (out + err).splitlines():
        assert line.isprintable(), line
        assert not line.startswith("error")
    assert one_error(run(f"shrink {ticket} --out {ticket}-small")).isprintable()
    assert one_error(run(f"export {ticket} {ticket}.onnx")).isprintable()
    for change in ({"format": f"biprune {ESCAPE}"}, {"version": ESCAPE}, {"structure": ESCAPE}):
        rewritten(ticket, **change)
        assert one_error(run(f"inspect {ticket}")).isprintable()
        assert one_error(run(f"prune {ticket} --sparsity 0.5 --out {ticket}-x")).isprintable()


def test_what_commands_print_is_printable(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts({ESCAPE: ESCAPE})
    print_table([ESCAPE], [[ESCAPE]], title=ESCAPE)
    print_lines(f"{ESCAPE}\n{ESCAPE}")
    out = capsys.readouterr().out
    assert out.count("[bold]") >= 5
    assert all(line.isprintable() for line in out.splitlines())


@pytest.mark.parametrize(
    "changes",
    [
        {"history": [1]},
        {"history": [{"epoch": 1}]},
        {"history": [{"epoch": 1, "stage": "x", "loss": "much"}]},
        {"history": [{"epoch": 1, "stage": ["x"], "loss": 1.0}]},
        {"cost": {}},
        {"cost": {"seconds": "x", "forward_passes": 1, "backward_passes": 1}},
        {"model": {}},
        {"data": {}},
        {"accuracy": "91"},
        {"layers": {"head.weight": [[1]]}},
        {"layers": {"head.weight": None}},
        {"layers": {}},
        {"structure": "group", "groups": {}},
        {"structure": "group", "groups": {"groups": [{"name": "x", "slices": [{}]}]}},
        {"scope": "everywhere"},
        {"settings": {"epochs": {}}},
    ],
)
def test_inspect_takes_a_strangers_file_in_its_stride(
    run: Run, ticket: Path, changes: dict[str, object]
) -> None:
    rewritten(ticket, **changes)
    code, out, err = run(f"inspect {ticket}")
    if code:
        assert "is damaged" in one_error((code, out, err))
    else:
        assert changes == {"settings": {"epochs": {}}}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_a_pipe_and_a_link_in_place_of_files(run: Run, ticket: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    for path in ticket.iterdir():
        (tmp_path / "linked" / path.name).symlink_to(path)
    message = one_error(run(f"inspect {tmp_path / 'linked'}"))
    assert "biprune.json' is a link that leads out of its folder" in message
    for path in ticket.iterdir():
        content = path.read_bytes()
        path.unlink()
        os.mkfifo(path)
        assert f"{str(path)!r} is not a file that can be read" in one_error(
            run(f"inspect {ticket}")
        )
        path.unlink()
        path.write_bytes(content)
    assert run(f"inspect {ticket}")[0] == 0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_json_is_valid_whatever_was_measured(run: Run, ticket: Path, value: float) -> None:
    loaded = biprune.load_ticket(ticket)
    loaded.accuracy = value
    loaded.save(ticket)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    code, out, _ = run(f"inspect {ticket} --json")
    assert code == 0
    found = json.loads(out, parse_constant=refuse)["accuracy"]
    assert found == ("NaN" if math.isnan(value) else "Infinity")
    assert run(f"inspect {ticket}")[0] == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="has no /dev/full")
@pytest.mark.parametrize("line", ["list methods --json", "inspect {}"])
def test_an_output_that_is_full_is_one_line(line: str, saved_ticket: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "biprune", *line.format(saved_ticket).split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == "error: Cannot read or write the output: No space left on device.\n"


def test_training_onto_a_full_disk(run: Run, small_disk: SmallDisk) -> None:
    """The first epoch finds room for its checkpoint, the second, with the one before, does not."""
    out = small_disk.folder / "out"
    options = "--width 4 --subset 100 --epochs 3 --rewind-epochs 0,1,2,3"
    line = f"train resnet8 digits {options} --out {out}"
    small_disk.enlarge(150)
    message = one_error(last_line(run(line)))
    checkpoint = out / UNFINISHED / "train.checkpoint"
    assert f"Cannot write {str(checkpoint)!r}: No space left on device." in message
    assert checkpoint.exists()
    small_disk.enlarge(10_000)
    code, _, err = run(line)
    assert code == 0
    assert "epoch 1/3" not in err  # it goes on
    assert len(biprune.load_dense(out).history) == 3


def test_saving_onto_a_full_disk_keeps_the_old_result(
    run: Run, saved_ticket: Path, small_disk: SmallDisk
) -> None:
    ticket, out = biprune.load_ticket(saved_ticket), small_disk.folder / "out"
    small_disk.enlarge(40)
    ticket.save(out)
    larger = biprune.Ticket(**{**vars(ticket), "rounds": [ticket, ticket, ticket]})
    with pytest.raises(OSError, match=r"Cannot write '.*tensors-.*': No space left on device"):
        larger.save(out)
    assert biprune.load_ticket(out).masks == ticket.masks
    assert len(list(out.iterdir())) == 2
    small_disk.enlarge(1000)
    assert len(biprune.load_ticket(larger.save(out)).rounds) == 3
