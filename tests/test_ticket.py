from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import biprune
from biprune.deploy.files.artifact import METADATA_FILE, TENSORS_FILE
from biprune.deploy.files.sparse import pack, unpack_masks, unpack_state
from biprune.masked import apply_masks_
from biprune.masks import Masks
from biprune.parameters import prunable
from biprune.selection import Selector
from biprune.structure import get_structure

Batches = list[tuple[Tensor, Tensor]]


@pytest.fixture
def ticket(batches: Batches) -> biprune.Ticket:
    model = biprune.create_model("resnet8", num_classes=3, in_channels=1, width=4)
    return biprune.prune(
        model,
        batches,
        "bip",
        sparsity=0.7,
        structure="filter",
        scope="global",
        epochs=1,
        seed=4,
        evaluate=lambda model: 12.5,
        ramp=0.5,
    )


def test_a_ticket_comes_back_bit_for_bit(
    ticket: biprune.Ticket, tmp_path: Path, same_state
) -> None:
    ticket.save(tmp_path / "out")
    loaded = biprune.load_ticket(tmp_path / "out")
    assert same_state(loaded.model, ticket.model)
    assert loaded.masks == ticket.masks
    assert loaded.masks.structure == ticket.masks.structure
    assert loaded.settings["ramp"] == 0.5
    again = biprune.load_ticket(loaded.save(tmp_path / "again"))
    assert same_state(again.model, ticket.model)
    modes = {path.stat().st_mode for path in (tmp_path / "out").iterdir()}
    assert len(modes) == 1  # who may read one file may read all


def test_every_field_of_a_ticket_comes_back(
    conv_net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    dense = biprune.train(conv_net, batches, epochs=1, evaluate=lambda model: 61.5)
    grouped = {"structure": "group", "budget": {"macs": 0.6}, "round_to": 2, "exclude": "head"}
    ticket = biprune.prune(
        dense, batches, "omp", epochs=1, seed=4, evaluate=lambda model: 12.5, **grouped
    )
    ticket.data = {"name": "mine"}
    again = biprune.load_ticket(ticket.save(tmp_path), conv_net)
    for field in {field.name for field in fields(ticket)} - {"model", "masks", "rounds"}:
        assert getattr(again, field) == getattr(ticket, field), field
    assert (again.accuracy, again.dense_accuracy, again.seed) == (12.5, 61.5, 4)
    assert again.left_out == {"head.weight": "it is the model's output"}
    assert again.chosen["round_to"] == 2


def test_a_users_own_model_is_asked_for(
    conv_net: nn.Module, batches: Batches, tmp_path: Path, same_state
) -> None:
    ticket = biprune.prune(conv_net, batches, sparsity=0.7, epochs=1)
    ticket.save(tmp_path)
    with pytest.raises(ValueError, match=r"not in biprune's registry\. Build it yourself and pass"):
        biprune.load_ticket(tmp_path)
    before = {name: value.clone() for name, value in conv_net.state_dict().items()}
    loaded = biprune.load_ticket(tmp_path, model=conv_net)
    assert same_state(loaded.model, ticket.model)
    assert all(torch.equal(before[name], v) for name, v in conv_net.state_dict().items())
    with pytest.raises(ValueError, match=r"do not fit `model`: bias, conv1\.weight"):
        biprune.load_ticket(tmp_path, model=nn.Linear(2, 2))


def test_a_model_with_a_compiled_part(batches: Batches, tmp_path: Path, same_state) -> None:
    def build(compiled: bool) -> nn.Module:
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())
        part = torch.compile(body, backend="eager") if compiled else body
        return nn.Sequential(part, nn.Linear(8, 3))  # pyright: ignore[reportArgumentType]

    ticket = biprune.prune(build(True), batches, "gmp", sparsity=0.5, epochs=1)
    assert sorted(ticket.masks) == ["0.1.weight", "1.weight"]
    ticket.save(tmp_path)
    assert same_state(biprune.load_ticket(tmp_path, build(True)).model, ticket.model)
    plain = biprune.load_ticket(tmp_path, build(False))
    assert plain.masks == ticket.masks
    assert torch.equal(plain.model(batches[0][0]), ticket.model(batches[0][0]))

    dense = biprune.train(build(True), batches, epochs=1)
    biprune.save_dense(dense, tmp_path / "dense")
    loaded = biprune.load_dense(tmp_path / "dense", build(False))  # and its states rewind it
    tickets = [biprune.prune(d, batches, "omp", sparsity=0.5, epochs=1) for d in (dense, loaded)]
    assert tickets[0].masks == tickets[1].masks
    outputs = [ticket.model(batches[0][0]) for ticket in tickets]
    assert torch.equal(*outputs)


def test_other_precisions_come_back_bit_for_bit(
    batches: Batches, tmp_path: Path, same_state
) -> None:
    model = biprune.create_model("resnet8", num_classes=3, in_channels=1, width=2).double()
    data = [(images.double(), labels) for images, labels in batches]
    ticket = biprune.prune(model, data, sparsity=0.5, epochs=1)
    loaded = biprune.load_ticket(ticket.save(tmp_path))
    assert same_state(loaded.model, ticket.model)
    assert loaded.model.get_parameter("head.weight").dtype == torch.float64


def test_a_registry_model_that_was_changed_is_asked_for(batches: Batches, tmp_path: Path) -> None:
    model = biprune.create_model("resnet8", num_classes=10, in_channels=1, width=2)
    model.head = nn.Linear(8, 3)
    ticket = biprune.prune(model, batches, sparsity=0.5, epochs=1)
    ticket.save(tmp_path)
    with pytest.raises(ValueError, match=r"do not fit a new resnet8: .* Pass `model`"):
        biprune.load_ticket(tmp_path)
    assert biprune.load_ticket(tmp_path, model=model).masks == ticket.masks


def test_tied_weights_survive(batches: Batches, tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(64, 64)
            self.second = nn.Linear(64, 64)
            self.second.weight = self.first.weight

        def forward(self, images: Tensor) -> Tensor:
            return self.second(self.first(images.flatten(1)))

    ticket = biprune.prune(Tied(), batches, sparsity=0.7, epochs=1)
    loaded = biprune.load_ticket(ticket.save(tmp_path), model=Tied()).model
    assert loaded.first.weight is loaded.second.weight  # pyright: ignore
    assert torch.equal(loaded.first.weight, ticket.model.first.weight)  # pyright: ignore


def test_damage_is_found_before_anything_is_built(ticket: biprune.Ticket, tmp_path: Path) -> None:
    def broken(name: str, content: bytes, text: str) -> None:
        ticket.save(tmp_path)
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=text):
            biprune.load_ticket(tmp_path)

    ticket.save(tmp_path)
    tensors = (tmp_path / TENSORS_FILE).read_bytes()
    metadata = json.loads((tmp_path / METADATA_FILE).read_text())

    def changed(**fields: object) -> bytes:
        return json.dumps(metadata | fields).encode()

    flipped = bytearray(tensors)
    flipped[-1] ^= 1
    broken(TENSORS_FILE, bytes(flipped), "is damaged: its contents do not match the hash")
    broken(TENSORS_FILE, tensors[:-10], "is damaged")
    broken(TENSORS_FILE, b"", "is damaged")
    broken(METADATA_FILE, b"{", "cannot be read as JSON")
    broken(METADATA_FILE, b"\xff\xfe", "cannot be read as JSON")
    broken(METADATA_FILE, b"[]", "was not written by biprune")
    broken(METADATA_FILE, b'{"format": "other"}', "was not written by biprune")
    broken(METADATA_FILE, changed(version=99), "has version 99; this biprune reads version 3")
    broken(METADATA_FILE, changed(format="biprune dense"), "holds a biprune dense, not a biprune t")
    broken(METADATA_FILE, changed(structure="row"), "Unknown structure 'row'")
    broken(METADATA_FILE, changed(model="resnet20"), "is damaged: 'model' in biprune.json is")
    broken(METADATA_FILE, changed(layers={}), "is damaged: its masks are not those of its layers")
    layers = {name: [1, 1] for name in metadata["layers"]}
    broken(METADATA_FILE, changed(layers=layers), "does not have the 1 bits of its shape")
    broken(METADATA_FILE, changed(history=3), "is damaged: 'history'")
    broken(METADATA_FILE, changed(sparsity="x"), "is damaged: 'sparsity'")
    broken(METADATA_FILE, changed(cost={"minutes": 1}), "is damaged: 'cost'")
    without = {key: value for key, value in metadata.items() if key != "seed"}
    broken(METADATA_FILE, json.dumps(without).encode(), "is incomplete: 'seed' is not in")
    (tmp_path / TENSORS_FILE).unlink()
    (tmp_path / METADATA_FILE).write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="Cannot read"):
        biprune.load_ticket(tmp_path)
    with pytest.raises(ValueError, match=r"holds nothing saved by biprune: there is no biprune\.j"):
        biprune.load_ticket(tmp_path / "nowhere")


def test_a_file_never_names_code_to_import(ticket: biprune.Ticket, tmp_path: Path) -> None:
    ticket.save(tmp_path)
    path = tmp_path / METADATA_FILE
    metadata = json.loads(path.read_text())
    metadata["model"]["name"] = "os:getcwd"
    path.write_text(json.dumps(metadata))
    with pytest.raises(ValueError, match="not in biprune's registry"):
        biprune.load_ticket(tmp_path)


def test_saving_into_a_file_fails_in_one_sentence(ticket: biprune.Ticket, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match="Cannot write to the folder"):
        ticket.save(tmp_path / "file")


def test_a_dense_run_comes_back_with_its_states(
    batches: Batches, tmp_path: Path, same_state
) -> None:
    model = biprune.create_model("resnet8", num_classes=3, in_channels=1, width=4)
    dense = biprune.train(model, batches, epochs=2, evaluate=lambda model: 1.5)
    biprune.save_dense(dense, tmp_path, data={"name": "digits"})
    loaded = biprune.load_dense(tmp_path)
    assert same_state(loaded.model, dense.model)
    assert (loaded.accuracy, loaded.epochs, loaded.history) == (1.5, 2, dense.history)
    assert loaded.states.keys() == dense.states.keys() == {0, 1}
    for epoch, state in dense.states.items():
        assert all(torch.equal(value, loaded.states[epoch][n]) for n, value in state.items())
    direct = biprune.prune(dense, batches, "omp", sparsity=0.5, epochs=1)
    through_disk = biprune.prune(loaded, batches, "omp", sparsity=0.5, epochs=1)
    assert direct.masks == through_disk.masks
    assert same_state(direct.model, through_disk.model)


def test_pruned_weights_take_no_room(tmp_path: Path, same_state) -> None:
    """At 95 % a ResNet-18 takes a tenth of its dense file at most, and comes back bit for bit."""
    model = biprune.create_model("resnet18")
    structure = get_structure("weight")
    scores = {name: weight.detach().abs() for name, weight in prunable(model, structure).items()}
    masks = Selector(structure)(scores, 0.95)
    apply_masks_(model, masks)
    ticket = biprune.Ticket(model, masks, None, biprune.Cost(), [], "omp", {}, 0.95, 0)
    file = ticket.save(tmp_path / "ticket") / TENSORS_FILE
    dense = tmp_path / "dense.safetensors"
    save_file(model.state_dict(), dense)
    assert file.stat().st_size <= 0.1 * dense.stat().st_size
    loaded = biprune.load_ticket(tmp_path / "ticket")
    assert same_state(loaded.model, model)
    assert loaded.masks == masks


def test_a_packed_file_that_contradicts_itself() -> None:
    mask = torch.tensor([[True, False, True]])
    tensors = pack({"w": torch.tensor([[1.5, 0.0, -2.0]]), "b": torch.ones(2)}, {"w": mask})
    masks = unpack_masks(tensors, {"w": [1, 3]})
    assert torch.equal(masks["w"], mask)
    state = unpack_state(tensors, masks)
    assert state["w"].tolist() == [[1.5, 0.0, -2.0]]
    assert state["b"].tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="kept values of 'w' are not as many as its mask keeps"):
        unpack_state(tensors | {"kept/w": torch.ones(3)}, masks)


def test_weights_that_are_not_pruned_are_not_dropped_in_silence(tmp_path: Path) -> None:
    model = nn.Linear(3, 1, bias=False)
    masks = Masks({"weight": torch.tensor([[True, False, True]])}, get_structure("weight"))
    ticket = biprune.Ticket(model, masks, None, biprune.Cost(), [], "omp", {}, 1 / 3, 0)
    with pytest.raises(ValueError, match="Pruned weights of 'weight' are not zero"):
        ticket.save(tmp_path)
