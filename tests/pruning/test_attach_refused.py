"""What `attach` refuses, at once and in a sentence."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from loops import METHODS, Batches, train
from torch import Tensor, nn
from torch.optim import SGD, AdamW

import biprune


def refused(
    model: nn.Module, optimizer: Any, kind: type[Exception], words: str, **how: Any
) -> None:
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(kind, match=words):
        biprune.attach(model, optimizer, **{"sparsity": 0.5, "steps": 10} | how)
    assert all(torch.equal(before[n], value) for n, value in model.state_dict().items())


def test_bad_arguments_are_refused(conv_net: nn.Module) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    listed = f"`method` must be one of {', '.join(METHODS)}, got 'snip'"
    refused(conv_net, optimizer, ValueError, listed, method="snip")
    refused(conv_net, optimizer, ValueError, "`steps` must be at least 1, got 0", steps=0)
    refused(conv_net, optimizer, TypeError, "`steps` must be a whole number, got 2.5", steps=2.5)
    refused(conv_net, optimizer, ValueError, "Did you mean 0.9", sparsity=90)
    refused(conv_net, optimizer, ValueError, "Say how much to prune", sparsity=None)
    words = (
        "`gmp` has no setting 'kappa' in a loop of your own. Its settings: ramp, initial_sparsity"
    )
    refused(conv_net, optimizer, TypeError, words, method="gmp", kappa=3.0)
    refused(conv_net, optimizer, ValueError, r"`ramp` must be in \(0, 1\], got 2", ramp=2.0)
    words = "`initial_sparsity` 0.6 is above the sparsity to reach, 0.5"
    refused(conv_net, optimizer, ValueError, words, initial_sparsity=0.6)
    words = "`gamma` must be positive, got 0"
    refused(conv_net, optimizer, ValueError, words, method="bip", gamma=0.0)
    refused(conv_net, optimizer, ValueError, "pass `example_input`", structure="group")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("target_sparsity", "sparsity"),
        ("amount", "sparsity"),
        ("total_steps", "steps"),
        ("ignored_layers", "exclude"),
        ("rampp", "ramp"),
    ],
)
def test_a_wrong_keyword_names_the_right_one(conv_net: nn.Module, given: str, meant: str) -> None:
    words = rf"has no setting '{given}' in a loop of your own\. Did you mean `{meant}`\?"
    refused(conv_net, SGD(conv_net.parameters()), TypeError, words, **{given: 0.5})


def test_what_the_loop_says_by_itself_is_no_setting(conv_net: nn.Module) -> None:
    words = r"has no setting 'lr' in a loop of your own\. Its settings: kappa, passes, ramp"
    refused(conv_net, SGD(conv_net.parameters()), TypeError, words, lr=0.1)


def test_a_model_and_an_optimizer_in_each_others_place(conv_net: nn.Module) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    with pytest.raises(TypeError, match=r"`model` must be a torch\.nn\.Module, got SGD"):
        biprune.attach(optimizer, conv_net, sparsity=0.5, steps=10)  # pyright: ignore


def test_an_optimizer_that_is_listed_twice_is_refused(conv_net: nn.Module) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    refused(conv_net, [optimizer, optimizer], ValueError, "given twice: list each of them once")


def test_a_second_attach_is_refused(conv_net: nn.Module) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    first = biprune.attach(conv_net, optimizer, sparsity=0.5, steps=10, include="conv1")
    words = "attached to 'conv1.weight' already. First call detach"
    refused(conv_net, optimizer, ValueError, words)
    refused(conv_net, AdamW(conv_net.parameters()), ValueError, words, method="bip")
    with pytest.raises(ValueError, match=words):
        biprune.hold(conv_net, optimizer, first.masks)
    second = biprune.attach(conv_net, optimizer, sparsity=0.5, steps=10, include="conv2")
    first.detach()
    second.detach()
    assert not optimizer._optimizer_step_post_hooks


def test_what_is_dropped_is_not_attached_any_more(conv_net: nn.Module) -> None:
    """The optimizer keeps the pruner alive; when both are gone, so is the attachment."""
    biprune.attach(conv_net, SGD(conv_net.parameters(), lr=0.05), sparsity=0.5, steps=10)
    biprune.attach(conv_net, SGD(conv_net.parameters(), lr=0.05), sparsity=0.5, steps=10)


def test_an_optimizer_without_the_weights_is_refused(conv_net: nn.Module) -> None:
    other = SGD(copy.deepcopy(conv_net).parameters(), lr=0.05)
    words = "does not hold 'conv1.weight', nor 2 more of 3 prunable weights"
    refused(conv_net, other, ValueError, words)
    head = SGD(conv_net.head.parameters(), lr=0.05)  # pyright: ignore
    words = "does not hold 'conv1.weight', nor 1 more"
    refused(conv_net, head, ValueError, words)
    assert biprune.attach(conv_net, head, sparsity=0.5, steps=10, include="head").masks.total == 36


def test_an_optimizer_that_loses_a_weight_says_so(conv_net: nn.Module, batches: Batches) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    biprune.attach(conv_net, optimizer, sparsity=0.5, steps=10)
    optimizer.param_groups[0]["params"].pop(0)
    with pytest.raises(ValueError, match=r"does not hold 'conv1.weight' any more"):
        train(conv_net, [optimizer], batches, 1)


def test_an_optimizer_without_hooks_is_refused(conv_net: nn.Module) -> None:
    class InBackward:
        def __init__(self) -> None:
            self.param_groups = [{"params": list(conv_net.parameters())}]

    words = "got InBackward, which has no hooks around its step. Optimizers that step within"
    refused(conv_net, InBackward(), TypeError, words)
    refused(conv_net, [SGD(conv_net.parameters()), InBackward()], TypeError, words)
    refused(conv_net, None, TypeError, "got NoneType, which has no hooks")


def test_parametrized_and_sparse_weights_are_refused() -> None:
    linear = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)))
    refused(linear, SGD(linear.parameters()), ValueError, "'0.weight' is already parametrized")
    model = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 2))
    optimizer = SGD(model.parameters(), lr=0.1)
    words = "gradient of '0.weight' will be sparse"
    refused(model, optimizer, ValueError, words, include="*")
    pruner = biprune.attach(model, optimizer, sparsity=0.5, steps=2)  # and is none of ours
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    assert pruner.step == 1


def test_a_gradient_that_turns_out_sparse_is_refused() -> None:
    class Rows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(8, 4))

        def forward(self, rows: Tensor) -> Tensor:
            return nn.functional.embedding(rows, self.table, sparse=True)

    model = Rows()
    optimizer = SGD(model.parameters(), lr=0.1)
    biprune.attach(model, optimizer, sparsity=0.5, steps=2, include="table")
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(ValueError, match="gradient of 'table' is sparse"):
        optimizer.step()


def test_sharded_weights_are_refused(tmp_path: Path) -> None:
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        model = nn.Linear(4, 4)
        mesh = init_device_mesh("cpu", (1,))
        model.weight = nn.Parameter(distribute_tensor(model.weight.data, mesh, [Replicate()]))
        with pytest.raises(ValueError, match=r"FSDP, DTensor.*not supported yet"):
            biprune.attach(model, SGD(model.parameters()), sparsity=0.5, steps=10)
    finally:
        dist.destroy_process_group()


def test_a_model_that_was_converted_afterwards_says_so(
    conv_net: nn.Module, batches: Batches
) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    biprune.attach(conv_net, optimizer, sparsity=0.5, steps=10)
    conv_net.double()
    words = r"'\S+' was torch.float32 on cpu and is torch.float64 on cpu now"
    with pytest.raises(ValueError, match=words):
        train(conv_net, [optimizer], [(x.double(), y) for x, y in batches], 1)


def test_a_captured_step_is_refused(
    conv_net: nn.Module, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer = SGD(conv_net.parameters(), lr=0.05)
    biprune.attach(conv_net, optimizer, sparsity=0.5, steps=10)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(nn.Parameter, "is_cuda", property(lambda _: True), raising=False)
    with pytest.raises(ValueError, match="captured in a CUDA graph"):
        train(conv_net, [optimizer], batches, 1)


@pytest.mark.parametrize("method", ["bip-plus", "movement"])
def test_an_optimizer_that_clears_the_gradients_says_so(
    conv_net: nn.Module, batches: Batches, method: str
) -> None:
    """Else nothing would be learned, without a word."""

    class Tidy(SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # pyright: ignore
            for p in self.param_groups[0]["params"]:
                p.add_(p.grad, alpha=-0.05)
            self.zero_grad()

    optimizer = Tidy(conv_net.parameters(), lr=0.05)
    biprune.attach(conv_net, optimizer, sparsity=0.5, steps=10, method=method)
    with pytest.raises(ValueError, match="clears the gradients within its step"):
        train(conv_net, [optimizer], batches, 1)


def test_fully_sharded_data_parallel_is_refused(conv_net: nn.Module) -> None:
    """By the name of its wrapper: to build one takes a group of processes."""

    class FullyShardedDataParallel(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    optimizer = SGD(conv_net.parameters(), lr=0.05)
    words = r"FSDP, DTensor.*not supported yet"
    refused(FullyShardedDataParallel(conv_net), optimizer, ValueError, words)
