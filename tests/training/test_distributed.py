"""Work that every process of a group would do in whole is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import biprune
from command_line import one_error, runner

GROUP = """
import sys
import torch, torch.distributed as dist, biprune
rank, size, file = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
model, batches = torch.nn.Linear(4, 3), [(torch.randn(8, 4), torch.zeros(8).long())]
calls = {
    "train": lambda: biprune.train(model, batches, epochs=1),
    "prune": lambda: biprune.prune(model, batches, sparsity=0.5, epochs=1),
    "compare": lambda: biprune.compare(
        ["omp"], "digits", "resnet8", sparsities=[0.5], seeds=[0], passes=1, dense={"epochs": 1},
        model_options={"width": 2}, data_options={"subset": 200}, store=file + ".store",
    ),
}
for name, call in calls.items():
    try:
        call()
    except ValueError as error:
        print(error)
    else:
        print(f"{name} done")
dist.destroy_process_group()
"""


def in_a_group(size: int, file: Path) -> list[list[str]]:
    """What each process of a real group, over loopback, prints."""
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", GROUP, str(rank), str(size), str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=90) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
    return [out.splitlines() for out, _ in outputs]


@pytest.mark.skipif(sys.platform != "linux", reason="the name of the loopback is Linux's")
def test_a_process_group_of_two_is_refused(tmp_path: Path) -> None:
    for lines in in_a_group(2, tmp_path / "meeting"):
        for line, name in zip(lines, ("train", "prune", "compare"), strict=True):
            begin = f"`{name}` is called in one of 2 processes (torch.distributed is initialised)"
            assert line.startswith(begin)
            assert "Start it once, with `python script.py`" in line
    assert not (tmp_path / "meeting.store").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="the name of the loopback is Linux's")
def test_a_process_group_of_one_is_none(tmp_path: Path) -> None:
    assert in_a_group(1, tmp_path / "meeting") == [["train done", "prune done", "compare done"]]


def test_the_environment_of_torchrun(conv_net: nn.Module, batches: list, monkeypatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match=r"`train` is called in one of 4 processes \(RANK and"):
        biprune.train(conv_net, batches, epochs=1)
    with pytest.raises(ValueError, match="`prune` is called in one of 4 processes"):
        biprune.prune(conv_net, batches, sparsity=0.5, epochs=1)
    monkeypatch.setenv("WORLD_SIZE", "1")
    biprune.prune(conv_net, batches, sparsity=0.5, epochs=1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.delenv("RANK")  # of some other tool
    biprune.prune(conv_net, batches, sparsity=0.5, epochs=1)


@pytest.mark.parametrize(
    "line",
    [
        "train resnet8 digits --epochs 1 --out {folder}",
        "prune {folder}-dense --sparsity 0.5 --out {folder}",
        "compare resnet8 digits --sparsities 0.5 --store {folder}",
        "reproduce snapshot --scale smoke --store {folder}",
        "demo --out {folder}",
    ],
)
def test_commands_are_refused_before_anything_is_written(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    folder = tmp_path / "out"
    message = one_error(runner(capsys, monkeypatch)(line.format(folder=folder)))
    assert "one of 2 processes" in message
    assert "`torchrun script.py`" in message
    assert not folder.exists()
