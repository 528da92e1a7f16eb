from __future__ import annotations

import pytest
import torch
from torch import nn

import biprune
from biprune.runtime import sparse
from biprune.runtime.sparse import CsrLinear, with_csr


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.conv(images).mean(dim=(2, 3)))


@pytest.fixture
def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(6, 4, 3, 3, generator=generator), torch.arange(6) % 3)] * 2


def ticket(batches: list, structure: str) -> biprune.Ticket:
    sparsity = 0.5 if structure == "weight" else None
    return biprune.prune(
        Mixed(), batches, "magnitude", sparsity=sparsity, structure=structure, epochs=1
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 12), (5, 12), (2, 3, 12)])
def test_sparse_rows_give_what_the_layer_gives(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(12, 7, bias=bias)
    with torch.no_grad():
        layer.weight[torch.rand_like(layer.weight) < 0.7] = 0.0
    inputs = torch.randn(shape)
    with torch.inference_mode():
        torch.testing.assert_close(CsrLinear(layer)(inputs), layer(inputs))


def test_sparse_rows_replace_linear_layers_with_zeros_and_nothing_else() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    dense, conv, sparse = nn.Linear(8, 8), nn.Conv1d(5, 5, 1), nn.Linear(8, 4)
    model = nn.Sequential(encoder, dense, conv, nn.Sequential(sparse)).eval()
    with torch.no_grad():
        for weight in (sparse.weight, conv.weight, encoder.linear1.weight):
            weight[:, ::2] = 0.0
    found = with_csr(model)
    assert found is not None
    assert [type(module) for module in found] == [*map(type, model[:3]), nn.Sequential]
    assert isinstance(found[3][0], CsrLinear)
    assert isinstance(found[0].linear1, nn.Linear)
    assert isinstance(model[3][0], nn.Linear)
    tokens = torch.randn(3, 5, 8)
    with torch.inference_mode():
        torch.testing.assert_close(found(tokens), model(tokens))
    assert with_csr(nn.Sequential(dense, conv)) is None


def test_a_device_without_kernels_is_refused(batches: list) -> None:
    with pytest.raises(ValueError, match="NVIDIA GPUs only, and the model is on 'cpu'"):
        ticket(batches, "2:4").to_semi_structured()


@pytest.mark.parametrize("structure", ["weight", "1:4"])
def test_other_patterns_are_refused(batches: list, structure: str) -> None:
    with pytest.raises(ValueError, match="those of structure '2:4'"):
        ticket(batches, structure).to_semi_structured()


def test_linear_layers_are_converted_and_nothing_else(
    batches: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch is handed on a device that has the kernels: exactly two of every four."""
    seen = []

    def compressed(dense: torch.Tensor) -> torch.Tensor:
        seen.append(dense.clone())
        return dense * 2

    monkeypatch.setattr(sparse, "_check_device", lambda device: None)
    monkeypatch.setattr(torch.sparse, "to_sparse_semi_structured", compressed)
    found = ticket(batches, "2:4")
    with pytest.raises(ValueError, match="take float16 or bfloat16"):
        found.to_semi_structured()
    linear = found.model.head
    linear.weight = nn.Parameter(linear.weight.detach().to(torch.int8), requires_grad=False)
    with pytest.raises(ValueError, match=r"take float16 or bfloat16, got torch\.int8"):
        found.to_semi_structured()
    found = ticket(batches, "2:4")
    found.model.half()
    converted = found.to_semi_structured()
    (weight,) = seen
    assert (weight.view(-1, 4).count_nonzero(dim=1) == 2).all()
    assert torch.equal(converted.head.weight, 2 * found.model.head.weight)
    assert torch.equal(converted.conv.weight, found.model.conv.weight)
    assert not converted.head.weight.requires_grad


def test_an_old_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ValueError, match=r"need compute capability 8\.0, this GPU has 7\.5"):
        sparse._check_device(torch.device("cuda"))
