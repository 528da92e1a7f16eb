"""Weights are found by what a run does with them, whatever module holds them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import biprune
from biprune.cli.printing import ticket_facts
from biprune.core.uses import product_weights
from biprune.files.artifact import read_metadata

Batches = list[tuple[Tensor, Tensor]]


class Conv1D(nn.Module):
    """As GPT-2 has it: a linear layer whose inputs come first."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


class Uses(nn.Module):
    """Each parameter is named by how it is used; those of the second half are not weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1d = Conv1D(6, 8)
        self.linear = nn.Parameter(torch.randn(6, 8))
        self.matmul = nn.Parameter(torch.randn(6, 5))
        self.left = nn.Parameter(torch.randn(4, 3))
        self.experts = nn.Parameter(torch.randn(2, 5, 7))
        self.cast = nn.Parameter(torch.randn(9, 7))
        self.kernel = nn.Parameter(torch.randn(4, 9, 1))
        self.transposed = nn.Parameter(torch.randn(4, 3, 1))
        self.position = nn.Parameter(torch.randn(3, 6))
        self.gain = nn.Parameter(torch.ones(3, 8))
        self.table = nn.Embedding(10, 6)
        self.unused = nn.Parameter(torch.randn(4, 4))
        for parameter in self.parameters():
            parameter.data *= 0.3  # so that it can be trained

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.conv1d(self.table(tokens) + self.position) * self.gain  # (n, 3, 8)
        x = functional.linear(x, self.linear) @ self.matmul  # (n, 3, 5)
        x = self.left @ x  # (n, 4, 5)
        halves = torch.bmm(x[:, :2].transpose(0, 1), self.experts)  # (2, n, 7)
        x = functional.linear(halves.transpose(0, 1), self.cast.double().float())  # (n, 2, 9)
        x = functional.conv1d(x.transpose(1, 2), self.kernel)  # (n, 4, 2)
        x = functional.conv_transpose1d(x, self.transposed).flatten(1)  # (n, 6)
        return x @ self.table.weight.t()


def test_weights_of_products_and_their_outputs() -> None:
    """A classifier tied to an embedding is left to the embedding."""
    model = Uses()
    tokens = torch.randint(10, (2, 3))
    expected = {
        "conv1d.weight": (1,),
        "linear": (0,),
        "matmul": (1,),
        "left": (0,),
        "experts": (0, 2),
        "cast": (0,),
        "kernel": (0,),
        "transposed": (1,),
    }
    assert product_weights(model, lambda: model(tokens)) == expected


class Experts(nn.Module):
    """Stacks of matrices: one picked for each row, and one multiplied by groups of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.picked = nn.Parameter(torch.randn(3, 8, 4))
        self.grouped = nn.Parameter(torch.randn(3, 8, 4))
        self.table = nn.Parameter(torch.randn(5, 4))

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.table[numbers][:, :, None]  # looked up, so not a weight
        x = torch.bmm(self.picked[numbers % 3], x).squeeze(2)
        ends = torch.arange(1, 4, dtype=torch.int32)
        return functional.grouped_mm(x, self.grouped, offs=ends)


def test_experts_are_weights_however_they_are_picked() -> None:
    model = Experts()
    found = product_weights(model, lambda: model(torch.arange(3)))
    assert found == {"picked": (0, 1), "grouped": (0, 2)}


def test_attention_in_eval_mode_is_seen_through() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
    found = product_weights(layer, lambda: layer(torch.randn(2, 3, 8)))
    wanted = ["self_attn.in_proj_weight", "self_attn.out_proj.weight"]
    assert sorted(found) == ["linear1.weight", "linear2.weight", *wanted]
    assert torch.backends.mha.get_fastpath_enabled()


def batches() -> Batches:
    tokens = torch.randint(10, (4, 8, 3))
    return list(zip(tokens, tokens[..., 0], strict=True))


@pytest.mark.parametrize("method", ["bip-plus", "bip", "gmp", "snip", "hydra"])
def test_a_model_without_any_known_layer_is_pruned_as_a_whole(method: str) -> None:
    model = Uses()
    ticket = biprune.prune(model, batches(), method, sparsity=0.75, epochs=2, lr=0.01)
    prunable = [p for name, p in model.named_parameters() if name in ticket.masks]
    assert list(ticket.masks) == [
        "linear", "matmul", "left", "experts", "cast", "kernel", "transposed", "conv1d.weight",
    ]  # fmt: skip
    total = sum(p.numel() for p in prunable)
    zeros = sum(int((ticket.model.get_parameter(n) == 0).sum()) for n in ticket.masks)
    assert (ticket.masks.total, zeros) == (total, total - round(0.25 * total))


def test_blocks_lie_along_the_inputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Conv1D(8, 8), nn.Parameter(torch.randn(3, 8))

        def forward(self, x: Tensor) -> Tensor:
            return functional.linear(self.first(x), self.second)

    data = [(torch.randn(8, 8), torch.randint(3, (8,)))]
    for include in (None, "*"):
        options = {"structure": "2:4", "epochs": 2, "include": include}
        ticket = biprune.prune(Two(), data, "gmp", **options)
        assert list(ticket.masks) == ["second"]
        assert ticket.left_out == {"first.weight": "its inputs are not its second dimension"}


@pytest.mark.parametrize("include", [None, "*"])
def test_outputs_of_a_weight_are_known_where_it_is_included_by_name(include: str | None) -> None:
    """What an output without a kept weight gives is constant: its scores stand still."""
    torch.manual_seed(0)
    model = nn.Sequential(Conv1D(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    inputs, labels = torch.randn(16, 8), torch.arange(16) % 3
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pruner = biprune.attach(model, optimizer, 0.5, steps=10, include=include, example_input=inputs)
    mask = pruner.masks["0.weight"]
    mask[:, 1], mask[2, :] = False, False
    mask[:, 3] = True
    pruner.masks.apply_(model)
    functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    moved = pruner.state_dict()["scores"]["0.weight"].abs()  # from 0
    assert float(moved[:, 1].max()) == 0
    assert float(moved[2, 3]) > 0


def test_the_error_suggests_a_weight_before_an_embedding() -> None:
    model = nn.Sequential(nn.Embedding(10, 6), Conv1D(6, 8))
    with pytest.raises(ValueError, match=r"such as include='1\.weight'"):
        biprune.attach(model, torch.optim.SGD(model.parameters()), 0.5, steps=10)


def test_a_run_that_cannot_be_made_leaves_the_known_layers() -> None:
    """And says what is wrong when it trains, not before."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.own = nn.Linear(4, 3), nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                raise RuntimeError("only for training")
            return self.head(x @ self.own)

    data = [(torch.randn(8, 4), torch.randint(3, (8,)))]
    ticket = biprune.prune(Mixed(), data, "gmp", sparsity=0.5, epochs=2)
    assert list(ticket.masks) == ["head.weight"]


def test_a_run_that_prunes_little_says_so_first(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Embedding(100, 8), nn.Flatten(), nn.Linear(24, 10))
    tokens = torch.randint(100, (2, 8, 3))
    data = list(zip(tokens, torch.randint(10, (2, 8)), strict=True))
    with caplog.at_level(logging.WARNING):
        biprune.prune(model, data, "gmp", sparsity=0.5, epochs=2)
    (record,) = caplog.records
    assert "Only 240 of the model's 1,050 weights are prunable by weight" in record.getMessage()
    caplog.clear()
    biprune.prune(model, data, "gmp", sparsity=0.5, epochs=2, include="*")
    assert not caplog.records


def test_a_ticket_says_of_how_much_its_sparsity_is(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(100, 8), nn.Flatten(), nn.Linear(24, 10))
    tokens = torch.randint(100, (2, 8, 3))
    data = list(zip(tokens, torch.randint(10, (2, 8)), strict=True))
    ticket = biprune.prune(model, data, "gmp", sparsity=0.5, epochs=2)
    assert repr(ticket) == "Ticket(gmp, weight: 50 % of 240 of 1,050 weights pruned)"
    ticket.save(tmp_path / "ticket")
    metadata = read_metadata(tmp_path / "ticket")
    assert metadata["num_weights"] == 1050
    facts = ticket_facts(metadata, ticket.masks)
    assert facts["reached"] == "0.5000: 120 of 240 weights kept, of 1,050 in the model"
