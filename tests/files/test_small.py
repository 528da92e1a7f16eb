from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import biprune
from architectures import build, images
from biprune.core.documents import read_document, write_document
from biprune.files.artifact import METADATA_FILE, UNFINISHED, read_metadata, tensors_path
from biprune.files.small import TRAINED, load_small, save_small
from biprune.structured.certificate import Certificate
from biprune.structured.edit import resize_
from biprune.structured.find import find_groups
from biprune.structured.removal import zero_
from biprune.structured.shrink import shrink

Same = Callable[[nn.Module, nn.Module], bool]


def small_of(model: nn.Module, example: Tensor) -> nn.Module:
    """The model without every other unit."""
    found = find_groups(model, example)
    keep = {group.name: torch.arange(group.size) % 2 == 0 for group in found.groups}
    zero_(model, found.groups, keep)
    return shrink(model, found, example)


@pytest.fixture(scope="module")
def registered() -> nn.Module:
    model = biprune.create_model("resnet8", in_channels=1, width=4, shortcut="B", seed=3)
    return small_of(model, torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))


def test_a_model_of_the_registry_comes_back_bit_for_bit(
    registered: nn.Module, tmp_path: Path, same_state: Same
) -> None:
    loaded = load_small(save_small(registered, tmp_path / "small"))
    assert same_state(loaded, registered)
    assert loaded.certificate == registered.certificate
    assert not loaded.training
    x = torch.ones(1, 1, 8, 8)
    assert torch.equal(loaded(x), registered(x))
    assert loaded.certificate.after.parameters < loaded.certificate.before.parameters
    again = load_small(save_small(loaded, tmp_path / "again"))
    assert same_state(again, registered)


def test_a_model_that_is_trained_on_is_not_what_was_certified(
    registered: nn.Module, tmp_path: Path
) -> None:
    small = copy.deepcopy(registered)
    certificate = small.certificate
    assert isinstance(certificate, Certificate)
    assert certificate.is_of(small)
    assert certificate.is_of(small.to(memory_format=torch.channels_last))  # pyright: ignore
    assert not json.loads((save_small(small, tmp_path) / METADATA_FILE).read_text())[TRAINED]
    with torch.no_grad():
        small.get_parameter("head.bias").add_(1e-3)
    assert not certificate.is_of(small)
    assert json.loads((save_small(small, tmp_path) / METADATA_FILE).read_text())[TRAINED]
    assert not load_small(tmp_path).certificate.is_of(small.double())


def test_the_layout_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biprune.core.layout.SAFE_INPUTS", 0)
    model = build("residual").to(memory_format=torch.channels_last)  # pyright: ignore
    small = small_of(model, images())
    loaded = load_small(save_small(small, tmp_path), model=build("residual"))
    assert loaded.conv1.weight.stride() == small.conv1.weight.stride()
    assert loaded.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(loaded(images(3)), small(images(3)))


@pytest.mark.parametrize("name", ["inverted", "group_normed"])
def test_a_users_own_model_is_cut_from_the_dense_one(
    name: str, tmp_path: Path, same_state: Same
) -> None:
    small = small_of(build(name), images())
    save_small(small, tmp_path)
    dense = build(name, seed=5)
    before = copy.deepcopy(dense)
    loaded = load_small(tmp_path, model=dense)
    assert same_state(loaded, small)
    assert same_state(dense, before)
    with torch.no_grad():
        assert torch.equal(loaded(images(3)), small(images(3)))
    with pytest.raises(ValueError, match=r"not in biprune's registry\. Build it yourself"):
        load_small(tmp_path)
    with pytest.raises(ValueError, match="was not made from this model: The model has no tensor"):
        load_small(tmp_path, model=nn.Linear(2, 2))


@pytest.mark.parametrize("name", ["torch_vit", "written_vit", "padded", "shuffled"])
def test_a_graph_comes_back_from_its_file_alone(
    name: str, tmp_path: Path, same_state: Same
) -> None:
    small = small_of(build(name), images())
    assert small.certificate.form == "graph"
    loaded = load_small(save_small(small, tmp_path))
    assert same_state(loaded, small)
    assert loaded.certificate == small.certificate
    assert loaded.certificate.is_of(loaded)
    assert torch.equal(loaded(images(3)), small(images(3)))
    trained = {n for n, p in loaded.named_parameters() if p.requires_grad}
    assert trained == {n for n, _ in build(name).named_parameters()}


def test_the_state_is_plain_and_fits_an_equally_cut_model() -> None:
    small = small_of(build("residual"), images())
    state = small.state_dict()
    assert all(type(tensor) is Tensor for tensor in state.values())
    assert state.keys() == build("residual").state_dict().keys()
    second = build("residual", seed=9)
    kept = small.certificate.kept.items()
    cut = {n: {d: torch.tensor(i) for d, i in dims.items()} for n, dims in kept}
    resize_(second, cut, small.certificate.numbers)
    second.load_state_dict(state)
    assert torch.equal(second(images(3)), small(images(3)))


LOAD = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocker())
import torch
from biprune.files.small import load_small
small = load_small(sys.argv[1])
print(float(small(torch.ones(1, 1, 8, 8)).double().sum()).hex())
"""


def test_loading_needs_torch_numpy_and_safetensors_alone(
    registered: nn.Module, tmp_path: Path
) -> None:
    blocked = "torch_pruning sklearn scipy joblib pydantic altair vl_convert typer click rich PIL "
    blocked += "filelock onnx onnxscript onnxruntime hypothesis pandas pyarrow narwhals"
    save_small(registered, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", LOAD.format(blocked=blocked.split()), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    expected = float(registered(torch.ones(1, 1, 8, 8)).double().sum().detach()).hex()
    assert done.stdout.strip() == expected, done.stderr


def test_damaged_and_foreign_folders_are_refused(registered: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds nothing saved by biprune"):
        load_small(tmp_path)
    (tmp_path / UNFINISHED).mkdir()
    with pytest.raises(ValueError, match="holds an unfinished run"):
        load_small(tmp_path)
    save_small(registered, tmp_path)
    described = tmp_path / METADATA_FILE
    whole = read_document(described)

    def written(**changes: object) -> None:
        write_document(described, {**whole, **changes})

    written(format="biprune ticket")
    with pytest.raises(ValueError, match="holds a biprune ticket, not a biprune small"):
        load_small(tmp_path)
    written(certificate={"kept": {}})
    with pytest.raises(ValueError, match=r"is damaged: 'certificate' in .* is not whole"):
        load_small(tmp_path)
    for field, wrong in (
        ("units", "5"),
        ("max_error", True),
        ("spread", 10**400),
        ("batches", 3),
        ("left_out", "x"),
        ("left_out", {"a": [1]}),
        ("numbers", {"": {"groups": "x"}}),
        ("before", {"parameters": 1}),
        ("kept", {"head.weight": {"1": [math.inf]}}),
        ("more", 1),
    ):
        written(certificate={**whole["certificate"], field: wrong})
        with pytest.raises(ValueError, match=r"'certificate' in .* is not whole") as caught:
            load_small(tmp_path)
        assert type(caught.value) is ValueError
        assert str(tmp_path) in str(caught.value)
    for kept in ({"head.weight": {"1": [[0], [1, 2]]}}, {"head.weight": {"1": [2**70]}}, 3):
        written(certificate={**whole["certificate"], "kept": kept})
        with pytest.raises(ValueError, match="is damaged"):
            load_small(tmp_path)
    written(model={"name": "os:system"})
    with pytest.raises(ValueError, match="not in biprune's registry"):
        load_small(tmp_path)
    kept = {**whole["certificate"]["kept"], "head.weight": {"1": [0, 9999]}}
    written(certificate={**whole["certificate"], "kept": kept})
    with pytest.raises(ValueError, match="was not made from this model: The kept indices of 'head"):
        load_small(tmp_path)
    kept["head.weight"] = {"1": [0]}
    written(certificate={**whole["certificate"], "kept": kept})
    with pytest.raises(ValueError, match=r"The saved weights in .* do not fit .*head\.weight"):
        load_small(tmp_path)
    written()
    tensors = tensors_path(tmp_path, read_metadata(tmp_path))
    data = bytearray(tensors.read_bytes())
    data[-1] ^= 1
    tensors.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged: its contents do not match the hash"):
        load_small(tmp_path)


def test_a_certificate_shows_no_escape_sequences(registered: nn.Module, tmp_path: Path) -> None:
    described = save_small(registered, tmp_path) / METADATA_FILE
    whole = read_document(described)
    certificate = {**whole["certificate"], "left_out": {"\x1b[31m": "\x1b]0;title\x07"}}
    write_document(described, {**whole, "certificate": certificate})
    told = str(load_small(tmp_path).certificate)
    assert "\x1b" not in told
    assert r"\x1b[31m stays whole" in told


def test_only_small_models_are_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must be a model that `shrink` returned, got a Linear"):
        save_small(nn.Linear(2, 2), tmp_path)
