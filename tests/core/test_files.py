"""Files are there in whole or not at all, kept when the disk is full, and never lie."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from biprune.core.documents import DOCUMENT, read_document, seal, write_document
from biprune.core.files import (
    LOCK_FILE,
    claimed,
    printable,
    read_file,
    replaced,
    write_bytes,
    write_text,
)
from disks import SmallDisk

CONTENT = {"accuracy": 91.25, "name": "x", "history": [{"loss": 0.1 + 0.2}], "words": ["NaN?"]}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def elsewhere(call: Callable[[], object]) -> object:
    """What `call` does in another thread, whose claims are its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_no_changed_byte_of_a_document_is_read(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    write_document(path, CONTENT)
    whole = path.read_bytes()
    assert {key: json.loads(whole)[key] for key in CONTENT} == CONTENT == read_document(path)
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="is damaged"):
            read_document(path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is damaged"):
            read_document(path)
    path.write_bytes(whole + b"\n")
    with pytest.raises(ValueError, match="is damaged"):
        read_document(path)


@pytest.mark.parametrize("depth", [40, 5_000, 1_000_000])
@pytest.mark.parametrize("pair", [b"[]", b"{}"])
def test_deep_nesting_is_a_sentence(tmp_path: Path, depth: int, pair: bytes) -> None:
    opening = pair[:1] + (b'"a":' if pair == b"{}" else b"")
    rest = b' "a": ' + opening * depth + b"1" + pair[1:] * depth + b"}\n"
    path = tmp_path / "deep.json"
    path.write_bytes(seal(DOCUMENT, rest) + rest)
    with pytest.raises(ValueError, match=r"deep\.json' cannot be read as JSON: nested too deep"):
        read_document(path)


@pytest.mark.parametrize("rest", [b"", b"\xff\xfe}", b' "a": 1]', b' "a": ' + b"9" * 5000 + b"}"])
def test_what_is_sealed_and_no_json_is_a_sentence(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "document.json"
    path.write_bytes(seal(DOCUMENT, rest) + rest)
    with pytest.raises(ValueError, match=r"document\.json' cannot be read as JSON"):
        read_document(path)


def test_a_huge_document_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk, but would in memory
    with pytest.raises(ValueError, match="is too large: 1,099,511,627,776 bytes"):
        read_document(path)


def test_a_file_larger_than_the_memory_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    with path.open("wb") as file:
        file.truncate(1 << 43)
    with pytest.raises(ValueError, match="checkpoint' is too large for the memory"):
        read_file(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_only_files_are_replaced(tmp_path: Path) -> None:
    """Root could put a file in the place of /dev/null."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="pipe': it is a device or a pipe"):
        write_text(pipe, "text")
    assert pipe.is_fifo()
    assert names(tmp_path) == ["pipe"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_only_files_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    (folder / "inner").mkdir()
    for name in ("pipe", "inner"):
        with pytest.raises(ValueError, match=rf"{name}' is not a file|Is a directory"):
            read_file(folder / name)
    (tmp_path / "secret").write_text("secret")
    (folder / "own").write_text("own")
    for name, target in {"out": "../secret", "device": "/dev/zero", "loop": "loop"}.items():
        (folder / name).symlink_to(target)
    for name in ("out", "device"):
        with pytest.raises(ValueError, match=rf"{name}' is a link that leads out of its folder"):
            read_file(folder / name)
    with pytest.raises(ValueError, match=r"Cannot read .*loop': Too many levels"):
        read_file(folder / "loop")
    (folder / "in").symlink_to("own")
    (tmp_path / "other").symlink_to(folder)
    assert read_file(folder / "in") == read_file(tmp_path / "other" / "own") == b"own"
    with pytest.raises(FileNotFoundError):
        read_file(folder / "nothing")


def test_no_escape_sequence_is_printable() -> None:
    assert printable("\x1b[31mred\x1b[0m") == r"\x1b[31mred\x1b[0m"
    assert printable("a\nb\r\tc\x07\x9b\u202e\ud800") == r"a\nb\r\tc\x07\x9b\u202e\ud800"
    assert printable("Größe [bold] ≥ 3") == "Größe [bold] ≥ 3"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
def test_a_failed_write_keeps_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "file"
    write_text(path, "old")

    def fsync(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        with pytest.raises(OSError, match="Cannot write") as caught:
            write_text(path, "new")
    assert str(caught.value) == (
        f"Cannot write {str(path)!r}: {os.strerror(number)}. What was there before is kept. "
        "Solve that, then run the same command again."
    )
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_full_disk(small_disk: SmallDisk) -> None:
    path = small_disk.folder / "file"
    write_bytes(path, b"old" * 1000)
    with pytest.raises(OSError, match=r"Cannot write '.*file': No space left on device"):
        write_bytes(path, bytes(100_000))
    assert path.read_bytes() == b"old" * 1000
    assert names(small_disk.folder) == ["file"]
    write_bytes(path, b"new" * 1000)
    assert path.read_bytes() == b"new" * 1000


LIMITED = """
import resource, sys
from biprune.core.files import write_bytes
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_bytes(sys.argv[1], bytes(5000))
except OSError as error:
    print(error)
"""


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    command = [sys.executable, "-c", LIMITED, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"Cannot write {str(path)!r}: File too large.")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_what_a_kill_left_is_swept_away_and_nothing_else(tmp_path: Path) -> None:
    killed = f".file.{'0123456789abcdef' * 2}.biprune"
    of_the_user = [f".file.{'0' * 32}", ".file.biprune", f"file.{'0' * 32}.biprune", ".file.part"]
    (tmp_path / "outside").write_text("mine")
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in (killed, *of_the_user):
        (folder / name).write_text("left")
    link = f".link.{'f' * 32}.biprune"
    (folder / link).symlink_to("../outside")
    with replaced(folder / "slow") as alive:
        alive.write_text("slow")
        write_text(folder / "file", "new")
        assert alive.exists()  # its writer lives
    assert names(folder) == sorted([*of_the_user, link, "file", "slow"])
    assert (folder / "slow").read_text() == "slow"
    assert (tmp_path / "outside").read_text() == "mine"


def test_many_writers_leave_one_file(tmp_path: Path) -> None:
    """While each of them sweeps away what it takes for the dead."""
    contents = [bytes([number]) * 50_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: write_bytes(tmp_path / "file", content), contents * 20))
    assert (tmp_path / "file").read_bytes() in contents
    assert names(tmp_path) == ["file"]


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    def claim() -> None:
        with claimed(tmp_path):
            pass

    with claimed(tmp_path):
        claim()  # the same writer may go in again
        with pytest.raises(OSError, match="Another run of biprune is writing into") as caught:
            elsewhere(claim)
    assert str(tmp_path) in str(caught.value)
    assert names(tmp_path) == []
    elsewhere(claim)


def test_a_claim_that_was_lost_is_noticed(tmp_path: Path) -> None:
    with claimed(tmp_path):
        (tmp_path / LOCK_FILE).unlink()
        with (
            pytest.raises(OSError, match="no longer belongs to this run alone"),
            claimed(tmp_path),
        ):
            pass
        other, done = threading.Event(), threading.Event()

        def take() -> None:
            with claimed(tmp_path):
                other.set()
                done.wait(10)

        thread = threading.Thread(target=take)
        thread.start()
        assert other.wait(10)
    assert names(tmp_path) == [LOCK_FILE]  # the other's, which is not taken away
    done.set()
    thread.join()
    assert names(tmp_path) == []


def test_a_claim_dies_with_its_process(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from biprune.core.files import claimed\n"
        "with claimed(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)])
    assert names(tmp_path) == [LOCK_FILE]
    with claimed(tmp_path):
        pass
    assert names(tmp_path) == []


def test_random_documents_come_back(tmp_path: Path) -> None:
    draw = random.Random(0)
    scalars = ["é\n\x1b", None, True, -1e-9, 10**20, 0.1 + 0.2, ""]

    def value(depth: int) -> Any:
        if depth == 0 or draw.random() < 0.4:
            return draw.choice([draw.random(), *scalars])
        if draw.random() < 0.5:
            return [value(depth - 1) for _ in range(3)]
        return {f"k{number}": value(depth - 1) for number in range(3)}

    for _ in range(50):
        content = {"content": value(6)}
        write_document(tmp_path / "document.json", content)
        assert read_document(tmp_path / "document.json") == content
