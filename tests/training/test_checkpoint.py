"""A damaged checkpoint is never resumed: the one before it is, or the run says what to do."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import biprune
from biprune.core.documents import seal
from biprune.training.checkpoint import HEAD, load_tensors_, read_state
from biprune.training.loop import Event

Batches = list[tuple[Tensor, Tensor]]
Train = Callable[..., biprune.TrainResult]
EPOCHS = 4


class KilledError(Exception):
    """What a test raises to stop a run in its middle."""


def stop_in(epoch: int) -> Callable[[Event], None]:
    def progress(event: Event) -> None:
        if event.epoch == epoch:
            raise KilledError

    return progress


@pytest.fixture
def train(conv_net: nn.Module, batches: Batches) -> Train:
    return partial(biprune.train, conv_net, batches, epochs=EPOCHS, lr=0.05)


@pytest.fixture
def stopped(train: Train, tmp_path: Path) -> Path:
    """The newest checkpoint of a run that was killed in its third epoch."""
    with pytest.raises(KilledError):
        train(checkpoint=tmp_path, progress=stop_in(2))
    return tmp_path / "train.checkpoint"


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def mutations(content: bytes) -> list[bytes]:
    """Every bit of the head, some of the rest, and cut short at several places."""
    draw = random.Random(0)
    head = range(8 * len(HEAD))
    bits = [*head, *(draw.randrange(8 * len(content)) for _ in range(200))]
    cut = [content[: draw.randrange(len(content))] for _ in range(20)]
    return [flipped(content, bit) for bit in bits] + [*cut, b"", content[:-1], content + b"\0"]


def test_no_flipped_bit_is_resumed(stopped: Path) -> None:
    for changed in mutations(stopped.read_bytes()):
        stopped.write_bytes(changed)
        with pytest.raises(ValueError, match=r"train\.checkpoint' is damaged"):
            read_state(stopped)


def test_the_one_before_takes_the_place_of_a_damaged_one(
    train: Train, stopped: Path, same_state, caplog: pytest.LogCaptureFixture
) -> None:
    whole = train()
    before = stopped.with_name("train.before.checkpoint")
    assert len(read_state(before)["history"]) == 1
    stopped.write_bytes(flipped(stopped.read_bytes(), 80_000))
    kept = before.read_bytes()
    with pytest.raises(KilledError):
        train(checkpoint=stopped.parent, progress=stop_in(1))
    assert before.read_bytes() == kept  # the damaged one has not replaced it
    resumed = train(checkpoint=stopped.parent)
    assert same_state(resumed.model, whole.model)
    assert f"{str(stopped)!r} is damaged" in caplog.text
    assert f"Going on from the one before it, {str(before)!r}" in caplog.text
    assert len(read_state(stopped)["history"]) == EPOCHS
    assert len(read_state(before)["history"]) == EPOCHS - 1


def test_killed_between_two_renames(train: Train, stopped: Path, same_state) -> None:
    os.replace(stopped, stopped.with_name("train.before.checkpoint"))
    assert same_state(train(checkpoint=stopped.parent).model, train().model)


def test_with_both_damaged_the_run_says_what_to_do(train: Train, stopped: Path) -> None:
    before = stopped.with_name("train.before.checkpoint")
    for path in (stopped, before):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="Delete both to start this run again") as caught:
        train(checkpoint=stopped.parent)
    assert str(stopped) in str(caught.value)
    assert str(before) in str(caught.value)
    for path in (stopped, before):
        path.unlink()
    assert len(train(checkpoint=stopped.parent).history) == EPOCHS


def resealed(path: Path, content: bytes) -> None:
    path.write_bytes(seal(HEAD, content) + content)


def pickled(state: object) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("settings"),
        lambda state: state.update(settings=3),
        lambda state: state["settings"].update(lr=torch.ones(2)),
        lambda state: state.pop("model"),
        lambda state: state.update(model={"conv1.weight": torch.ones(1)}),
        lambda state: state.update(model=[1]),
        lambda state: state.update(algorithm={"param_groups": [], "state": {}}),
        lambda state: state.update(algorithm=None),
        lambda state: state.update(cost={"minutes": 3}),
        lambda state: state.update(history=7),
        lambda state: state.update(states=7),
    ],
)
def test_a_sound_file_with_other_contents_is_refused(
    train: Train, stopped: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    """Such as another version of biprune may have written."""
    state = read_state(stopped)
    change(state)
    resealed(stopped, pickled(state))
    with pytest.raises(ValueError, match="does not hold what this version of biprune") as caught:
        train(checkpoint=stopped.parent)
    assert "Delete it to start this run again." in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"PK\3\4", b"\x80\x02.", pickled([1]), pickled("x")[:-30], b"\xff" * 99]
)
def test_a_sound_file_that_is_no_state_is_refused(
    train: Train, stopped: Path, content: bytes
) -> None:
    stopped.with_name("train.before.checkpoint").unlink()
    resealed(stopped, content)
    with pytest.raises(ValueError, match=r"The checkpoint '.*' (cannot be read|holds no state)"):
        train(checkpoint=stopped.parent)


def test_code_in_a_checkpoint_is_not_run(train: Train, stopped: Path, tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "run"),)

    resealed(stopped, pickled(Evil()))
    train(checkpoint=stopped.parent)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="has no pipes")
def test_a_pipe_in_its_place_is_not_waited_for(train: Train, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.checkpoint")
    with pytest.raises(ValueError, match=r"train\.checkpoint' is not a file that can be read"):
        train(checkpoint=tmp_path)


def test_two_runs_do_not_share_a_folder(train: Train, tmp_path: Path) -> None:
    from filelock import FileLock

    with (
        FileLock(tmp_path / ".biprune.lock", thread_local=False),
        pytest.raises(OSError, match="Another run of biprune is writing into"),
    ):
        in_thread(lambda: train(checkpoint=tmp_path))
    assert not (tmp_path / "train.checkpoint").exists()
    train(checkpoint=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "train.checkpoint",
        "train.before.checkpoint",
    }


def in_thread(call: Callable[[], object]) -> object:
    """What `call` does in another thread, whose locks are its own."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


class Versioned(nn.Module):
    """Refuses a state that does not say its version, as a model may that has changed since."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def _load_from_state_dict(self, state: object, prefix: str, local: dict, *args: Any) -> None:
        assert local.get("version") == 2
        super()._load_from_state_dict(state, prefix, local, *args)


def test_modules_are_told_the_version_of_their_state() -> None:
    one, other = Versioned(), Versioned()
    load_tensors_(one, {name: t.clone() for name, t in other.state_dict().items()})
    assert torch.equal(one.layer.weight, other.layer.weight)
    with pytest.raises(RuntimeError, match="Missing"):
        load_tensors_(one, {"layer.bias": torch.zeros(2)})
