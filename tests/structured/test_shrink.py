from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from architectures import ARCHITECTURES, build, images
from biprune.core.groups import Group, Slice
from biprune.structured.calls import by_position
from biprune.structured.certificate import Comparer, Form
from biprune.structured.find import find_groups
from biprune.structured.grouping import Coupling
from biprune.structured.macs import count_macs
from biprune.structured.removal import zero_
from biprune.structured.shrink import shrink


def pruned(name: str, seed: int = 0) -> tuple[nn.Module, Coupling, dict[str, Tensor]]:
    """A model of which a random half of the units of every group is zero."""
    model = build(name)
    found = find_groups(model, images())
    generator = torch.Generator().manual_seed(seed)
    keep = {}
    for group in found.groups:
        keep[group.name] = torch.zeros(group.size, dtype=torch.bool)
        keep[group.name][torch.randperm(group.size, generator=generator)[: group.size // 2]] = True
    zero_(model, found.groups, keep)
    return model, found, keep


def distance(one: nn.Module, other: nn.Module, seed: int = 11) -> float:
    """The largest difference of outputs in float64, in parts of the largest output."""
    x = images(16, seed).double()
    with torch.no_grad():
        expected, found = (copy.deepcopy(m).double().eval()(x) for m in (one, other))
    return float((expected - found).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_units_of_groups_go_and_outputs_stay(name: str) -> None:
    model, found, keep = pruned(name)
    before = {n: p.clone() for n, p in model.state_dict().items()}
    small = shrink(model, found, images())
    assert distance(model, small) < 1e-12
    with torch.no_grad():
        torch.testing.assert_close(small(images(4)), model(images(4)))
    parameters, originals = dict(small.named_parameters()), dict(model.named_parameters())
    for group in found.groups:
        kept = int(keep[group.name].sum())
        part = group.filters[0]
        lost = (group.size - kept) * part.places.shape[1]
        for other in found.groups:  # of the groups that share this weight
            if other is not group and any(p.tensor == part.tensor for p in other.filters):
                lost += int((~keep[other.name]).sum())
        assert parameters[part.tensor].shape[part.dim] == (
            originals[part.tensor].shape[part.dim] - lost
        )
    certificate = small.certificate
    assert certificate.units == sum(units.numel() for units in keep.values())
    assert certificate.units_removed == sum(int((~units).sum()) for units in keep.values())
    assert certificate.zeros_left == 0 < certificate.zeros
    assert certificate.max_error < 1e-12
    assert certificate.after.parameters == sum(p.numel() for p in small.parameters())
    assert certificate.after.macs == sum(count_macs(small, images()).values())
    assert certificate.before.macs > certificate.after.macs
    assert certificate.after.bytes == sum(
        t.numel() * t.element_size() for t in small.state_dict().values()
    )
    assert all(torch.equal(p, before[n]) for n, p in model.state_dict().items())


def test_what_is_kept_are_the_indices_of_the_original() -> None:
    model, found, keep = pruned("residual")
    small = shrink(model, found, images())
    kept = keep["conv1.weight"].nonzero().flatten().tolist()
    assert list(small.certificate.kept["conv1.weight"][0]) == kept
    assert list(small.certificate.kept["norm1.bias"][0]) == kept
    stem = keep["stem.weight"].nonzero().flatten()
    rows = torch.tensor(kept)
    expected = model.conv1.weight[rows][:, stem]
    assert torch.equal(small.conv1.weight, expected)
    assert torch.equal(small.norm1.running_mean, model.norm1.running_mean[rows])


def conv_net(bias: float) -> nn.Sequential:
    """Filter 1 is empty; behind the norm it gives relu(bias)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 6, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(6 * 64, 5),
        ).eval()
    with torch.no_grad():
        net[0].weight[1] = 0
        net[1].bias[1] = bias
    return net


def test_an_empty_filter_goes_if_it_gives_exact_zeros() -> None:
    negative = shrink(conv_net(-0.5), None, images())
    assert negative[0].out_channels == 3
    assert distance(negative, conv_net(-0.5)) < 1e-12
    positive = shrink(conv_net(0.5), None, images())
    assert positive[0].out_channels == 4
    assert positive.certificate.units_removed == 0
    assert positive.certificate.zeros_left == 27
    assert "27 stay: the rest of their unit is not zero, or gives" in str(positive.certificate)


def shut(model: nn.Module, bias: float = -100.0) -> nn.Module:
    """Half of the filters of `conv1` are empty, and a rectifier behind all of them is shut."""
    with torch.no_grad():
        model.conv1.weight[:4] = 0
        model.conv1.bias.fill_(bias)
    return model


def test_zeros_that_data_could_open_are_no_zeros() -> None:
    """On the numbers that are tried the rectifier is shut; on brighter images it is not."""
    net = shut(build("lit"))
    assert not net.conv1(images()).add(images().mean(dim=1, keepdim=True)).gt(0).any()
    small = shrink(net, None, images())
    assert small.conv1.out_channels == 8
    bright = images(4).abs() * 255
    with torch.no_grad():
        torch.testing.assert_close(small(bright), net(bright))


class Scaled(nn.Module):
    """Channels times a second input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv1(x) * y).mean(dim=(2, 3)))


def test_zeros_times_a_second_input_go_and_constants_stay() -> None:
    net = shut(Scaled().eval(), bias=-1.0)
    with torch.no_grad():
        net.conv1.bias[0] = 0  # zero times anything
        net.head.weight[:, 7] = 0
    inputs = (images(), images(seed=1)[:, :1])
    small = shrink(net, None, inputs)
    assert small.certificate.units_removed == 2
    assert list(small.certificate.kept["conv1.weight"][0]) == [1, 2, 3, 4, 5, 6]
    with torch.no_grad():
        torch.testing.assert_close(small(*inputs), net(*inputs))


def test_what_was_found_by_mistake_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit that is read by nobody goes all the same."""
    net = conv_net(0.5)
    with torch.no_grad():
        net[3].weight[:, 2] = 0
    all_zero = {"3.weight": torch.zeros(4)}
    monkeypatch.setattr("biprune.structured.removal._read", lambda *_: all_zero)
    small = shrink(net, None, images())
    assert list(small.certificate.kept["0.weight"][0]) == [0, 1, 3]
    assert distance(net, small) < 1e-12


def test_channels_that_nobody_reads_go() -> None:
    net = conv_net(0.5)
    with torch.no_grad():
        net[3].weight[:, [1, 2]] = 0
    small = shrink(net, None, images())
    assert (small[0].out_channels, small[3].in_channels) == (2, 2)
    assert distance(net, small) < 1e-12


def test_what_goes_lets_more_go() -> None:
    """conv 3 reads only channel 1 for its filter 2, and that is gone: so is the filter."""
    net = conv_net(-0.5)
    with torch.no_grad():
        net[3].weight[2] = 0
        net[3].weight[2, 1] = 1.0
        net[3].bias[2] = -1.0
    small = shrink(net, None, images())
    assert (small[0].out_channels, small[3].out_channels) == (3, 5)
    assert distance(net, small) < 1e-12


def test_a_layer_keeps_a_unit() -> None:
    net = conv_net(0.5)
    with torch.no_grad():
        net[3].weight.zero_()
        net[3].bias.zero_()
    small = shrink(net, None, images())
    assert (small[0].out_channels, small[3].out_channels) == (1, 1)
    assert distance(net, small) == 0


class Summed(nn.Module):
    """The channels are read by a layer, and by a sum without weights that no graph shows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x)).mean(dim=(2, 3))
        return self.head(x) * (1 + x.detach().sum(dim=1, keepdim=True))


def test_a_reader_without_weights_keeps_what_it_reads() -> None:
    net = Summed()
    found = find_groups(net, images())
    assert [group.name for group in found.groups] == ["conv.weight"]
    with torch.no_grad():
        net.head.weight[:, 1] = 0  # no layer reads it, and the sum does
        net.conv.weight[2], net.conv.bias[2], net.head.weight[:, 2] = 0, 0, 0
    small = shrink(net, found, images())
    assert small.conv.out_channels == 3
    assert distance(net, small) < 1e-6
    assert "read by more than layers" in small.certificate.left_out["conv.weight"]


def test_groups_of_another_model_are_refused_by_name() -> None:
    model, found, _ = pruned("flat")
    group = found.groups[1]
    wrong = tuple(
        Slice(p.tensor, p.dim, p.places.roll(1, 0) if p.role == "input" else p.places, p.role)
        for p in group.slices
    )
    with pytest.raises(ValueError, match=r"'4\.weight' cannot go by themselves"):
        shrink(model, Coupling((Group(group.name, wrong),), {}), images())


def test_a_narrow_strided_convolution_is_laid_out_as_usual() -> None:
    model, found, _ = pruned("residual")
    model = model.to(memory_format=torch.channels_last)  # pyright: ignore
    small = shrink(model, found, images())
    assert small.conv1.weight.is_contiguous()
    assert model.conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_precision_layout_and_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("biprune.core.layout.SAFE_INPUTS", 0)
    model, found, _ = pruned("residual")
    model.stem.weight.requires_grad_(False)
    model = model.to(torch.bfloat16, memory_format=torch.channels_last)  # pyright: ignore
    small = shrink(nn.DataParallel(model), found, images().bfloat16())
    assert type(small) is type(model)
    assert small.conv1.weight.dtype == torch.bfloat16
    assert small.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert not small.stem.weight.requires_grad
    assert small.certificate.dtype == "float64"
    assert distance(model, small) < 1e-12


class Single(nn.Module):
    """Casts to float32, as code does that wants a sum to be precise."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv_net(-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.float())


class Asserting(Single):
    def forward(self, x: Tensor) -> Tensor:
        assert x.dtype == torch.float32
        return self.net(x)


@pytest.mark.parametrize(("kind", "dtype"), [(Single, "float64"), (Asserting, "float32")])
def test_casts_are_raised_and_models_of_float32_only_certified_in_it(
    kind: type[Single], dtype: str
) -> None:
    small = shrink(kind(), None, images())
    assert small.certificate.dtype == dtype
    assert small.certificate.tolerance == {"float64": 1e-9, "float32": 1e-4}[dtype]
    assert small.net[0].out_channels == 3


class Fixed(nn.Module):
    """Takes batches of three and no others."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv_net(-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.view(3, 3, 8, 8))


def test_a_model_may_take_batches_of_one_size_only() -> None:
    small = shrink(Fixed(), None, images(3))
    assert small.certificate.batches == (3, 3, 3, 3, 3)
    assert small.net[0].out_channels == 3
    with pytest.raises(ValueError, match=r"does not run on .* Pass an `example_input`"):
        shrink(Fixed(), None, images(2))


class AboveTen(nn.Module):
    """For more than ten samples what seems dead is not, as another kernel may have it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv_net(-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.net[2:](self.net[:2](x) + float(len(x) > 10))


def test_a_large_batch_is_compared() -> None:
    """The model's own class does not do, and a graph takes no more samples than it is right for."""
    model = AboveTen()
    small = shrink(model, None, images())
    assert small.certificate.form == "graph"
    torch.testing.assert_close(small(images()), model(images()))
    with pytest.raises(ValueError, match="takes `x` of shape"):
        small(images(16))
    assert distance(model, shrink(model, None, images(), form="module")) < 1e-12


@pytest.mark.parametrize(("macs", "samples"), [(0, 64), (10**9, 10), (10**11, 8)])
def test_the_large_batch_is_smaller_where_a_sample_costs_more(macs: int, samples: int) -> None:
    called, inputs = by_position(conv_net(-0.5), images())
    batches = Comparer(called, inputs, 0, macs).compare(called.model).batches
    assert batches == (2, 2, samples, 1, 3)


class Returned(nn.Module):
    """Returns an object that has its logits as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv_net(-0.5)

    def forward(self, x: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.net(x), loss=None)


@pytest.mark.parametrize("form", ["module", "graph"])
def test_a_model_that_returns_an_object_with_logits_is_compared_by_them(form: Form) -> None:
    model = Returned()
    small = shrink(model, None, images(), form=form)
    assert small.certificate.max_error < 1e-12
    assert small.certificate.units_removed == 1
    torch.testing.assert_close(small(images(4)).logits, model(images(4)).logits)


@pytest.mark.parametrize("call", [shrink, lambda model, _, x: find_groups(model, x)])
def test_a_model_without_numbers_is_refused(call: Callable[..., object]) -> None:
    with pytest.raises(ValueError, match=r"tensors of `model` are on the meta device"):
        call(build("flat").to("meta"), None, images())


class Domain(nn.Module):
    """Takes numbers from [0, 1] only."""

    def __init__(self) -> None:
        super().__init__()
        self.net = conv_net(-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x + 1e-3).log() - (1.001 - x).log())


def test_a_model_with_a_domain_is_certified_within_it() -> None:
    small = shrink(Domain(), None, images().sigmoid())
    assert small.net[0].out_channels == 3
    assert small.certificate.batches == (2, 2, 64, 1, 3)
    assert small.certificate.max_error < 1e-12
    groups = find_groups(Domain(), images().sigmoid())
    with pytest.raises(ValueError, match="output for `example_input` is not finite"):
        shrink(Domain(), groups, images() + 10)


def test_shrinking_again_counts_from_the_original() -> None:
    model, found, keep = pruned("residual")
    small = shrink(model, found, images())
    with torch.no_grad():
        small.conv2.weight[:, 0] = 0
        small.conv1.weight[0] = 0
    again = shrink(small, None, images())
    first = keep["conv1.weight"].nonzero().flatten().tolist()
    assert list(again.certificate.kept["conv1.weight"][0]) == first[1:]
    assert list(again.certificate.kept["stem.weight"][0]) == list(
        small.certificate.kept["stem.weight"][0]
    )
    assert distance(small, again) < 1e-12


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="`tolerance` must be positive, got 0"):
        shrink(build("flat"), None, images(), tolerance=0)
    with pytest.raises(ValueError, match="has no parameters: there is nothing to remove"):
        shrink(nn.ReLU(), None, images())
