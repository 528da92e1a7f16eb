from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, TensorDataset

import biprune
from biprune.core.masks import Masks
from biprune.core.selection import select
from biprune.core.structure import get_structure
from biprune.training.batches import classification_loss
from biprune.training.checkpoint import read_state
from biprune.training.loop import Cost, Event
from biprune.training.schedule import LRSchedule, Moment

Batches = list[tuple[Tensor, Tensor]]


class KilledError(Exception):
    """What a test raises to stop a run in its middle."""


def kill_at(epoch: int, step: int):
    def progress(event: Event) -> None:
        if (event.epoch, event.step) == (epoch, step):
            raise KilledError

    return progress


def half_masks(model: nn.Module) -> Masks:
    scores = {"conv1.weight": model.get_parameter("conv1.weight").detach().abs()}
    return select(scores, 0.5, get_structure("weight"))


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_against_torchs_own_loop(conv_net: nn.Module, batches: Batches, nesterov: bool) -> None:
    """Two epochs of `train` are the plain loop anyone would write."""
    options = {"lr": 0.1, "nesterov": nesterov}
    result = biprune.train(
        conv_net, batches, epochs=2, schedule="cosine", channels_last=False, **options
    )
    optimizer = torch.optim.SGD(
        conv_net.parameters(), momentum=0.9, weight_decay=5e-4, fused=True, **options
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    losses = []
    for inputs, labels in [*batches, *batches]:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(conv_net(inputs), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    for name, value in conv_net.state_dict().items():
        assert torch.allclose(result.model.state_dict()[name].double(), value.double(), atol=1e-6)
    assert result.history[0]["loss"] == pytest.approx(sum(losses[:4]) / 4)
    assert (result.cost.forward_passes, result.cost.backward_passes) == (8, 8)
    assert result.cost.seconds == pytest.approx(sum(r["seconds"] for r in result.history))


def test_the_input_model_and_the_callers_generators_are_untouched(
    conv_net: nn.Module, batches: Batches
) -> None:
    before = {name: value.clone() for name, value in conv_net.state_dict().items()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # pyright: ignore
    biprune.train(conv_net, batches, epochs=1)
    assert all(torch.equal(before[name], v) for name, v in conv_net.state_dict().items())
    assert conv_net.training
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # pyright: ignore
    assert random.getstate() == states[2]


def test_masked_weights_stay_plus_zero(conv_net: nn.Module, batches: Batches) -> None:
    masks = half_masks(conv_net)
    result = biprune.train(conv_net, batches, epochs=3, masks=masks)
    weight = result.model.get_parameter("conv1.weight")
    pruned = weight[~masks["conv1.weight"]]
    assert not pruned.any()
    assert not torch.signbit(pruned).any()
    assert weight[masks["conv1.weight"]].all()


@pytest.mark.parametrize(("epoch", "step"), [(0, 2), (1, 4), (2, 1)])
def test_stopped_and_resumed_equals_uninterrupted(
    conv_net: nn.Module, tmp_path: Path, same_state, epoch: int, step: int
) -> None:
    """With shuffling and dropout drawing random numbers, and masks, momentum and BatchNorm."""
    images, labels = torch.randn(32, 1, 8, 8), torch.randint(3, (32,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
    model = nn.Sequential(conv_net, nn.Dropout(0.5), nn.Linear(3, 3))
    masks = select({"2.weight": torch.rand(3, 3)}, 0.5, get_structure("weight"))
    options = {"epochs": 3, "lr": 0.05, "masks": masks, "seed": 5, "rewind_epochs": [0, 1, 2]}
    whole = biprune.train(model, loader, **options)
    with pytest.raises(KilledError):
        biprune.train(model, loader, **options, checkpoint=tmp_path, progress=kill_at(epoch, step))
    resumed = biprune.train(model, loader, **options, checkpoint=tmp_path)
    assert same_state(whole.model, resumed.model)
    drop_times = [
        [{k: v for k, v in record.items() if k != "seconds"} for record in result.history]
        for result in (whole, resumed)
    ]
    assert drop_times[0] == drop_times[1]
    assert whole.states.keys() == resumed.states.keys() == {0, 1, 2}
    for kept in whole.states:
        assert all(torch.equal(v, resumed.states[kept][n]) for n, v in whole.states[kept].items())
    assert resumed.cost.forward_passes == whole.cost.forward_passes
    again = biprune.train(model, loader, **options, checkpoint=tmp_path)
    assert same_state(again.model, resumed.model)


@pytest.mark.parametrize(
    ("method", "settings", "kills"),
    [
        # Twice while pruning, then while retraining.
        ("bip", {"retrain_epochs": 2, "score_lr": 1.0}, [(0, 3), (2, 2), (1, 2)]),
        ("bip-plus", {"kappa": 30.0}, [(0, 3), (2, 2)]),
    ],
)
def test_bip_stopped_and_resumed_equals_uninterrupted(
    conv_net: nn.Module,
    batches: Batches,
    tmp_path: Path,
    same_state,
    method: str,
    settings: dict,
    kills: list[tuple[int, int]],
) -> None:
    options = {"sparsity": 0.8, "epochs": 3, **settings}
    whole = biprune.prune(conv_net, batches, method, **options)
    for epoch, step in kills:
        with pytest.raises(KilledError):
            biprune.prune(
                conv_net,
                batches,
                method,
                **options,
                checkpoint=tmp_path,
                progress=kill_at(epoch, step),
            )
    resumed = biprune.prune(conv_net, batches, method, **options, checkpoint=tmp_path)
    assert whole.masks == resumed.masks
    assert same_state(whole.model, resumed.model)
    assert [r.get("iou") for r in whole.history] == [r.get("iou") for r in resumed.history]


@pytest.mark.parametrize("method", ["bip-plus", "gmp"])
def test_numbers_of_numpy_can_be_resumed(
    conv_net: nn.Module, batches: Batches, tmp_path: Path, method: str
) -> None:
    """What `np.linspace` gives is a float, but not one that the safe reader takes."""
    options = {"sparsity": np.linspace(0.5, 0.9, 3)[1], "lr": np.float64(0.05), "epochs": 2}
    with pytest.raises(KilledError):
        biprune.prune(
            conv_net, batches, method, **options, checkpoint=tmp_path, progress=kill_at(1, 1)
        )
    resumed = biprune.prune(conv_net, batches, method, **options, checkpoint=tmp_path)
    assert resumed.masks == biprune.prune(conv_net, batches, method, **options).masks


def test_a_model_spread_over_processes_is_refused(
    conv_net: nn.Module, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copies would train apart; in a single process there is nothing to average."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(conv_net)
        assert biprune.train(wrapped, batches, epochs=1).history
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        with pytest.raises(ValueError, match=r"in one of 2 processes.* use `attach`"):
            biprune.prune(wrapped, batches, sparsity=0.5, epochs=1)
    finally:
        dist.destroy_process_group()


def test_a_checkpoint_of_another_run_is_refused(
    conv_net: nn.Module, batches: Batches, tmp_path: Path
) -> None:
    biprune.train(conv_net, batches, epochs=1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"to another run: its lr was 0\.1, now it is 0\.2"):
        biprune.train(conv_net, batches, epochs=1, lr=0.2, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"its rewind_epochs was \[0, 1\], now it is \[0\]"):
        biprune.train(conv_net, batches, epochs=1, rewind_epochs=[0], checkpoint=tmp_path)
    pruned = biprune.prune(conv_net, batches, "magnitude", sparsity=0.5, epochs=1)
    masked = {"epochs": 1, "checkpoint": tmp_path / "masked"}
    biprune.train(pruned.model, batches, masks=pruned.masks, **masked)
    with pytest.raises(ValueError, match=r"another run: its `?masks"):
        biprune.train(pruned.model, batches, **masked)
    with torch.no_grad():
        conv_net.get_parameter("head.bias").add_(1)
    with pytest.raises(ValueError, match="belongs to another run: it started from other weights"):
        biprune.train(conv_net, batches, epochs=1, checkpoint=tmp_path)
    digits = biprune.load_data("digits", subset=70)
    net = biprune.create_model("resnet8", in_channels=1, width=2)
    biprune.train(net, digits, epochs=1, checkpoint=tmp_path / "digits")
    other = biprune.load_data("digits", subset=70, seed=5)
    with pytest.raises(ValueError, match="belongs to another run: its data was"):
        biprune.train(net, other, epochs=1, checkpoint=tmp_path / "digits")
    (tmp_path / "train.checkpoint").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"is damaged.* Delete it to start this run again"):
        biprune.train(conv_net, batches, epochs=1, checkpoint=tmp_path)


def test_an_unwritable_folder(conv_net: nn.Module, batches: Batches, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"Cannot write to the folder '.*file'"):
        biprune.train(conv_net, batches, epochs=1, checkpoint=tmp_path / "file")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_at_once(
    conv_net: nn.Module, batches: Batches, tmp_path: Path, value: float
) -> None:
    calls = 0

    def loss(model: nn.Module, batch: object) -> Tensor:
        nonlocal calls
        calls += 1
        inputs, labels = batch  # pyright: ignore[reportGeneralTypeIssues]
        fine = nn.functional.cross_entropy(model(inputs), labels)
        return fine * value if calls == 6 else fine

    with pytest.raises(FloatingPointError) as caught:
        biprune.train(conv_net, batches, epochs=2, loss=loss, checkpoint=tmp_path)
    assert f"The loss became {value} at step 2 of epoch 2 (train)." in str(caught.value)
    assert "The state after epoch 1 is kept in" in str(caught.value)
    assert calls == 6
    good = read_state(tmp_path / "train.checkpoint")
    assert len(good["history"]) == 1
    assert all(torch.isfinite(v).all() for v in good["model"].values())


@pytest.mark.parametrize(("method", "bad"), [("bip", 5), ("bip", 6), ("bip-plus", 3)])
def test_bip_names_the_step_whichever_level_diverged(
    conv_net: nn.Module, batches: Batches, method: str, bad: int
) -> None:
    calls = 0

    def loss(model: nn.Module, batch: object) -> Tensor:
        nonlocal calls
        calls += 1
        fine = classification_loss(model, batch)
        return fine * float("nan") if calls == bad else fine

    with pytest.raises(FloatingPointError, match=rf"became nan at step 3 of epoch 1 \({method}\)"):
        biprune.prune(conv_net, batches, method, sparsity=0.5, epochs=1, loss=loss)


def test_the_same_seed_gives_the_same_bits_with_a_users_loader(
    conv_net: nn.Module, same_state
) -> None:
    images, labels = torch.randn(24, 1, 8, 8), torch.randint(3, (24,))
    generator = torch.Generator().manual_seed(9)
    state = generator.get_state()
    loader = DataLoader(
        TensorDataset(images, labels), batch_size=8, shuffle=True, generator=generator
    )
    runs = [biprune.train(conv_net, loader, epochs=2, seed=seed).model for seed in (1, 1, 2)]
    assert same_state(runs[0], runs[1])
    assert not same_state(runs[0], runs[2])
    assert torch.equal(generator.get_state(), state)


def test_every_epoch_has_an_order_of_its_own(conv_net: nn.Module) -> None:
    seen: list[float] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.extend(batch[0][:, 0, 0, 0].tolist())
        return classification_loss(model, batch)

    images = torch.arange(24.0)[:, None, None, None].expand(-1, 1, 8, 8) / 24
    loader = DataLoader(TensorDataset(images, torch.arange(24) % 3), batch_size=8, shuffle=True)
    biprune.train(conv_net, loader, epochs=2, loss=loss)  # pyright: ignore[reportArgumentType]
    assert sorted(seen[:24]) == sorted(seen[24:])
    assert seen[:24] != seen[24:]


class Noisy:
    """Draws from numpy and from `random`, as augmentation by other libraries does."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(2):
            noise = torch.from_numpy(np.random.randn(6, 1, 8, 8)).float() * random.random()
            yield noise, torch.arange(6) % 3


def test_numpy_and_random_are_seeded_too(conv_net: nn.Module, same_state) -> None:
    runs = (biprune.train(conv_net, Noisy(), epochs=1, seed=seed).model for seed in (0, 0, 1))
    one, again, other = runs
    assert same_state(one, again)
    assert not same_state(one, other)


def test_samplers_with_generators_of_their_own(conv_net: nn.Module, same_state) -> None:
    data = TensorDataset(torch.randn(24, 1, 8, 8), torch.randint(3, (24,)))
    generator = torch.Generator().manual_seed(9)
    state = generator.get_state()
    sampler = RandomSampler(data, generator=generator)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    runs = [biprune.train(conv_net, loader, epochs=2, seed=1).model for _ in range(2)]
    assert same_state(*runs)
    assert torch.equal(generator.get_state(), state)


class Jittered(Dataset):
    """Random augmentation in the data set itself."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1, 8, 8), float(index % 3)) + torch.randn(1, 8, 8), index % 3


def test_workers_that_live_on_repeat_themselves(
    conv_net: nn.Module, tmp_path: Path, same_state
) -> None:
    loader = DataLoader(
        Jittered(), batch_size=8, shuffle=True, num_workers=1, persistent_workers=True
    )
    options = {"epochs": 2, "lr": 0.05}
    first = biprune.train(conv_net, loader, **options)
    with pytest.raises(KilledError):
        biprune.train(conv_net, loader, **options, checkpoint=tmp_path, progress=kill_at(1, 1))
    resumed = biprune.train(conv_net, loader, **options, checkpoint=tmp_path)
    assert same_state(first.model, resumed.model)


class Endless(IterableDataset):
    """A data set without a length."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        return ((torch.randn(1, 8, 8) + n % 3, n % 3) for n in range(20))


def test_a_loader_without_a_length(conv_net: nn.Module) -> None:
    before = torch.get_rng_state()
    result = biprune.train(conv_net, DataLoader(Endless(), batch_size=8), epochs=2)
    assert result.cost.forward_passes == 6
    assert torch.equal(torch.get_rng_state(), before)


def test_validating_changes_nothing(conv_net: nn.Module, batches: Batches, same_state) -> None:
    def accuracy(model: nn.Module) -> float:
        assert not model.training
        return float(model(batches[0][0]).mean())

    plain = biprune.train(conv_net, batches, epochs=2)
    validated = biprune.train(conv_net, batches, epochs=2, validate=accuracy)
    assert same_state(plain.model, validated.model)


def test_a_last_step_that_ruins_the_weights_is_not_kept(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    data = [torch.ones(1, 2)]
    options = {"lr": 1e20, "loss": lambda model, x: 1e30 * model(x).square().sum()}
    with pytest.raises(FloatingPointError, match="The weights became infinite or NaN at step 1 of"):
        biprune.train(model, data, epochs=1, **options, checkpoint=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_buffer_may_be_infinite(batches: Batches, conv_net: nn.Module) -> None:
    conv_net.register_buffer("causal", torch.full((3, 3), -torch.inf).triu(1))
    result = biprune.train(conv_net, batches, epochs=1)
    assert torch.isinf(result.model.get_buffer("causal")).sum() == 3


@pytest.mark.parametrize("method", ["bip-plus", "bip", "gmp"])
def test_a_weight_that_becomes_nan_beneath_its_mask_ends_the_run(method: str) -> None:
    """It ranks last, so that it is pruned and what the model shows stays finite."""
    model = nn.Linear(100, 50)  # few scores are searched one by one, which finds a NaN sooner
    with torch.no_grad():
        model.weight[0, 0] = 1e-4  # so small that it is pruned from the start

    def loss(model: nn.Module, batch: object) -> torch.Tensor:
        weight = model.get_parameter("weight")
        spoilt = weight[0, 0] * 0.0  # its gradient is 0 * inf
        return weight.square().sum() + torch.sqrt(spoilt.square()).nan_to_num(0.0)

    with pytest.raises(
        FloatingPointError, match=r"(weights|gradients) became infinite or NaN at step"
    ):
        biprune.prune(model, [torch.ones(1)], method, sparsity=0.5, epochs=1, loss=loss)


@pytest.mark.parametrize(
    ("returned", "text"),
    [(torch.ones(2, requires_grad=True), r"got shape \(2,\)"), (1.5, "got float")],
)
def test_a_loss_that_is_no_scalar(returned: object, text: str) -> None:
    with pytest.raises(TypeError, match="`loss` must return a scalar tensor, " + text):
        biprune.train(nn.Linear(2, 1), [0], epochs=1, loss=lambda model, batch: returned)  # pyright: ignore


def percent_right(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    right = [
        int(logits.argmax() == label)
        for images, labels in batches
        for logits, label in zip(model(images), labels, strict=True)
    ]
    return 100 * sum(right) / len(right)


def test_accuracies_are_counted_on_their_own_splits() -> None:
    split = biprune.load_data("digits", subset=300, val_fraction=0.2)
    model = biprune.create_model("resnet8", in_channels=1, width=4)
    dense = biprune.train(model, split, epochs=2)
    ticket = biprune.prune(dense, split, "gmp", sparsity=0.5, epochs=1)
    assert split.val is not None
    for result in (dense, ticket):
        on_test, on_val = (percent_right(result.model, part) for part in (split.test, split.val))
        assert result.accuracy == pytest.approx(on_test)
        assert result.history[-1]["accuracy"] == pytest.approx(on_val)
        assert on_test != on_val
    assert ticket.dense_accuracy == dense.accuracy


def test_a_validation_without_a_number(conv_net: nn.Module, batches: Batches) -> None:
    with pytest.raises(TypeError, match="`validate` must return a number, got NoneType"):
        biprune.train(conv_net, batches, epochs=1, validate=lambda model: None)  # pyright: ignore


def test_a_name_is_no_model(batches: Batches) -> None:
    with pytest.raises(TypeError, match=r"`model` must be a torch\.nn\.Module, got str"):
        biprune.train("resnet8", batches, epochs=1)  # pyright: ignore


def test_an_evaluation_without_a_number_does_not_lose_the_run(
    conv_net: nn.Module, batches: Batches, caplog: pytest.LogCaptureFixture
) -> None:
    result = biprune.train(conv_net, batches, epochs=1, evaluate=lambda model: "good")  # pyright: ignore
    assert result.accuracy is None
    assert "`evaluate` must return a number, got 'good'" in caplog.text


def test_an_evaluation_that_goes_back_to_training_leaves_the_mode(
    conv_net: nn.Module, batches: Batches
) -> None:
    seen = []

    def evaluate(model: nn.Module) -> float:
        seen.append((model.training, model(batches[0][0]).requires_grad))
        model.train()
        return 1.0

    dense = biprune.train(conv_net, batches, epochs=1, evaluate=evaluate)
    ticket = biprune.prune(dense, batches, "gmp", sparsity=0.5, epochs=1, evaluate=evaluate)
    assert seen == [(False, False)] * 2
    assert not dense.model.training
    assert not any(module.training for module in ticket.model.modules())


class Extra(nn.Linear):
    """A layer with state besides its tensors."""

    def __init__(self, state: object) -> None:
        super().__init__(64, 3)
        self.state = state

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.flatten(1))

    def get_extra_state(self) -> object:
        return self.state

    def set_extra_state(self, state: object) -> None:
        self.state = state


def test_extra_state_is_resumed_or_refused_before_the_run(batches: Batches, tmp_path: Path) -> None:
    for _ in range(2):  # the second finds the run at its end
        torch.manual_seed(0)
        model = Extra({"count": [1, "two"]})
        trained = biprune.train(model, batches, epochs=1, checkpoint=tmp_path)
        assert isinstance(trained.model, Extra)
        assert trained.model.state == {"count": [1, "two"]}
    for unreadable in (random.Random(0), lambda: None):
        with pytest.raises(ValueError, match=r"cannot hold '_extra_state' of the model, a \w+: "):
            biprune.train(Extra(unreadable), batches, epochs=1, checkpoint=tmp_path / "other")


def test_events_and_callbacks(conv_net: nn.Module, batches: Batches) -> None:
    events: list[Event] = []
    tested: list[bool] = []
    validated: list[bool] = []

    def evaluate(model: nn.Module) -> float:
        tested.append(True)
        return 12.5

    def validate(model: nn.Module) -> float:
        validated.append(True)
        return 3.0

    result = biprune.train(
        conv_net,
        batches,
        epochs=2,
        progress=events.append,
        evaluate=evaluate,
        validate=validate,
    )
    assert (len(tested), len(validated)) == (1, 2)
    assert result.accuracy == 12.5
    assert [record["accuracy"] for record in result.history] == [3.0, 3.0]
    assert [(e.epoch, e.step) for e in events] == [(e, s) for e in (0, 1) for s in (1, 2, 3, 4)]
    assert [e.record is not None for e in events] == [False, False, False, True] * 2


def test_kept_states_are_those_of_runs_that_ended_there(
    conv_net: nn.Module, batches: Batches
) -> None:
    options = {"schedule": "constant", "lr": 0.01}
    whole = biprune.train(conv_net, batches, epochs=3, rewind_epochs=[1, 2, 3], **options)
    for epoch, state in whole.states.items():
        ended = biprune.train(conv_net, batches, epochs=epoch, **options).model.state_dict()
        assert all(torch.equal(value, ended[name]) for name, value in state.items())


def test_kept_states(conv_net: nn.Module, batches: Batches) -> None:
    result = biprune.train(conv_net, batches, epochs=40)
    assert sorted(result.states) == [0, 2]
    assert result.rewind_epoch == 2
    for name, value in conv_net.state_dict().items():
        assert torch.equal(result.states[0][name], value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rewind_epochs": [0, 50]}, r"`rewind_epochs` must be in \[0, 1\], .* got \[0, 50\]"),
        ({"warmup_epochs": -1}, r"`warmup_epochs` must be in \[0, 1\], .* got -1"),
        ({"lr": 0.0}, "`lr` must be positive, got 0"),
        ({"seed": -1}, "`seed` must be at least 0, got -1"),
        ({"schedule": "linear"}, "`schedule` must be one of cosine, step, constant"),
        ({"milestones": (80, 120)}, r"`milestones` are fractions of the run in \[0, 1\]"),
    ],
)
def test_bad_settings(conv_net: nn.Module, batches: Batches, options: dict, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        biprune.train(conv_net, batches, epochs=1, **options)


def test_a_step_knows_where_it_is() -> None:
    run = [Moment(epoch, step, epochs=3, steps=4) for epoch in range(3) for step in range(4)]
    assert [now.done for now in run] == pytest.approx([n / 12 for n in range(12)])
    assert [(now.epoch, now.step) for now in run if now.ends_epoch] == [(0, 3), (1, 3), (2, 3)]


def test_schedules_at_named_points() -> None:
    cosine = LRSchedule("cosine")
    assert [cosine.factor(d) for d in (0.0, 0.5)] == pytest.approx([1.0, 0.5])
    step = LRSchedule("step", milestones=(0.5, 0.75))
    assert [step.factor(d) for d in (0.0, 0.49, 0.5, 0.74, 0.75, 0.99)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )
    warm = LRSchedule("constant", warmup=0.2)
    assert [warm.factor(d) for d in (0.0, 0.05, 0.1, 0.2, 0.9)] == pytest.approx(
        [0, 0.25, 0.5, 1, 1]
    )
    assert biprune.OMP(warmup_epochs=40).scaled(16).warmup_epochs == 4


def test_a_warm_up_goes_with_every_shape() -> None:
    warm = LRSchedule("cosine", warmup=0.5)
    wanted = [0.0, 0.5 * (1 + math.cos(math.pi / 4)) / 2, (1 + math.cos(3 * math.pi / 4)) / 2]
    assert [warm.factor(done) for done in (0.0, 0.25, 0.75)] == pytest.approx(wanted)


def test_decay_and_milestones_of_a_run(conv_net: nn.Module, batches: Batches) -> None:
    steps = {"decay": 0.5, "milestones": (0.75, 0.25)}
    result = biprune.train(conv_net, batches, epochs=4, lr=0.2, **steps)
    assert [record["lr"] for record in result.history] == pytest.approx([0.2, 0.1, 0.1, 0.05])


def test_learning_rates_of_a_run(conv_net: nn.Module, batches: Batches) -> None:
    result = biprune.train(conv_net, batches, epochs=4, lr=0.2, warmup_epochs=1)
    # The rate of each epoch's last step: warm-up at 3/4, then the steps at 50 % and 75 %.
    assert [r["lr"] for r in result.history] == pytest.approx([0.15, 0.2, 0.02, 0.002])


def test_autocast_runs_in_bfloat16(conv_net: nn.Module, batches: Batches) -> None:
    seen = []

    def loss(model: nn.Module, batch: object) -> Tensor:
        inputs, labels = batch  # pyright: ignore[reportGeneralTypeIssues]
        logits = model(inputs)
        seen.append(logits.dtype)
        return nn.functional.cross_entropy(logits, labels)

    result = biprune.train(conv_net, batches, epochs=1, autocast=True, loss=loss)
    assert set(seen) == {torch.bfloat16}
    assert result.model.get_parameter("conv1.weight").dtype == torch.float32


def test_channels_last_changes_layout_only(conv_net: nn.Module, batches: Batches) -> None:
    result = biprune.train(conv_net, batches, epochs=1, channels_last=True)
    weight = result.model.get_parameter("conv2.weight")
    assert weight.is_contiguous(memory_format=torch.channels_last)
    plain = biprune.train(conv_net, batches, epochs=1)
    assert plain.model.get_parameter("conv2.weight").is_contiguous()
    assert torch.allclose(plain.model.get_parameter("conv2.weight"), weight, atol=1e-5)
    ours = biprune.create_model("resnet8", num_classes=3, in_channels=1, width=4)
    trained = biprune.train(ours, batches, epochs=1).model.get_parameter("stages.1.0.conv1.weight")
    assert trained.is_contiguous(memory_format=torch.channels_last)
    vars(conv_net)["created_by"] = {"name": "their.models:conv_net"}
    theirs = biprune.train(conv_net, batches, epochs=1).model
    assert theirs.get_parameter("conv2.weight").is_contiguous()


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        ([], ValueError, "yields no batches"),
        (iter([1]), ValueError, "one-shot iterator"),
        (3, TypeError, "`data` must be a Dataset or something that yields batches, got int"),
        ([torch.zeros(2, 1, 8, 8)], ValueError, r"needs batches of \(inputs, labels\), got Tensor"),
        (
            [(torch.zeros(2, 1, 8, 8), torch.tensor([0, 7]))],
            ValueError,
            "Labels run from 0 to 7, but the model has 3 outputs. Build it with enough",
        ),
        (
            [(torch.zeros(2, 1, 8, 8), torch.tensor([-1, 1]))],
            ValueError,
            "Labels run from -1 to 1, but the model has 3 outputs. Count them from 0",
        ),
    ],
)
def test_bad_data(conv_net: nn.Module, data: object, error: type, text: str) -> None:
    with pytest.raises(error, match=text):
        biprune.train(conv_net, data, epochs=1)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("call", [biprune.train, partial(biprune.prune, sparsity=0.5)])
def test_a_last_batch_of_one_before_batchnorm(call, conv_net: nn.Module, batches: Batches) -> None:
    model = nn.Sequential(conv_net, nn.BatchNorm1d(3))
    last = (batches[0][0][:1], batches[0][1][:1])
    with pytest.raises(ValueError, match=r"A batch holds one sample, .* `drop_last=True`"):
        call(model, [*batches, last], epochs=1)


def by_attach(model: nn.Module, batches: Batches, epochs: int) -> None:
    biprune.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.5, steps=epochs)


WAYS = [biprune.train, partial(biprune.prune, sparsity=0.5), by_attach]


@pytest.mark.parametrize("call", WAYS)
def test_a_model_without_numbers(call, conv_net: nn.Module, batches: Batches) -> None:
    conv_net.head.to("meta")
    with pytest.raises(ValueError, match=r"2 of the 14 .* meta device, .* 'head\.weight'"):
        call(conv_net, batches, epochs=1)


@pytest.mark.parametrize("call", [biprune.train, partial(biprune.prune, sparsity=0.5)])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_model_that_is_not_finite(call, number, conv_net: nn.Module, batches: Batches) -> None:
    conv_net.get_parameter("conv2.weight").data[0, 0, 0, 0] = number
    with pytest.raises(ValueError, match=r"infinite or NaN numbers in 'conv2\.weight'"):
        call(conv_net, batches, epochs=1)


class Returning(nn.Module):
    """A model whose logits come in something else."""

    def __init__(self, model: nn.Module, wrap: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.model = model
        self.wrap = wrap

    def forward(self, images: Tensor) -> object:
        return self.wrap(self.model(images))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: (logits, torch.zeros(1)),
        lambda logits: [logits],
        lambda logits: SimpleNamespace(loss=None, logits=logits),
        lambda logits: {"loss": None, "logits": logits},
    ],
    ids=["tuple", "list", "logits", "dict"],
)
@pytest.mark.parametrize("method", ["bip-plus", "snip", "synflow"])
def test_logits_are_found_in_what_a_model_returns(method: str, wrap) -> None:
    split = biprune.load_data("digits", subset=120)
    plain = biprune.create_model("resnet8", in_channels=1, width=2)
    options = {"sparsity": 0.5, "epochs": 1}
    wanted, found = (
        biprune.prune(model, split, method, channels_last=False, **options)
        for model in (plain, Returning(plain, wrap))
    )
    assert found.accuracy == wanted.accuracy
    assert all(torch.equal(found.masks[f"model.{name}"], m) for name, m in wanted.masks.items())


def test_a_model_without_logits(conv_net: nn.Module, batches: Batches) -> None:
    for wrap in (lambda logits: {"scores": logits}, lambda logits: (), lambda logits: None):
        with pytest.raises(ValueError, match=r"The logits must be the tensor .* `evaluate`"):
            biprune.train(Returning(conv_net, wrap), batches, epochs=1)


def test_costs_add() -> None:
    assert Cost(1.5, 2, 3) + Cost(1.0, 4, 5) == Cost(2.5, 6, 8)


@pytest.mark.parametrize(("width", "safe"), [(4, False), (8, True)])
def test_channels_last_only_where_the_kernels_are_safe(width: int, safe: bool) -> None:
    """A strided pointwise convolution of fewer than 8 inputs corrupts memory in channels_last."""
    model = biprune.create_model("resnet8", width=width, shortcut="B", num_classes=2)
    batch = (torch.randn(8, 3, 16, 16), torch.arange(8) % 2)
    trained = biprune.train(model, [batch] * 3, epochs=2).model
    for again in (False, True):
        convs = [m for m in trained.modules() if isinstance(m, nn.Conv2d) and m.kernel_size[0] > 1]
        last = [m.weight.is_contiguous(memory_format=torch.channels_last) for m in convs]
        assert last == [safe] * len(convs), again
        trained = biprune.train(trained, [batch], epochs=1, channels_last=True).model
