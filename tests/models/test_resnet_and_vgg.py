"""The networks: shapes, published parameter counts, layouts, initial weights."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from biprune.models import MODELS, create_model
from biprune.models.resnet import PaddedShortcut
from variants import VARIANTS, shapes


def count_parameters(model):
    return sum(param.numel() for param in model.parameters())


@pytest.mark.parametrize(("in_channels", "size"), [(3, 32), (1, 8)])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_logits_have_shape_and_every_parameter_gets_a_gradient(name, options, in_channels, size):
    model = create_model(name, num_classes=7, in_channels=in_channels, width=4, **options)
    images = torch.randn(6, in_channels, size, size, generator=torch.Generator().manual_seed(0))

    logits = model(images)
    assert logits.shape == (6, 7)
    assert logits.isfinite().all()

    cross_entropy(logits, torch.arange(6)).backward()
    without = [
        name
        for name, param in model.named_parameters()
        if param.grad is None or not param.grad.isfinite().all() or not param.grad.any()
    ]
    assert without == []


@pytest.mark.parametrize("size", [(1, 1), (1, 6), (9, 7), (33, 33)])
@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_odd_and_oblong_images_work(name, options, size):
    model = create_model(name, width=2, **options).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, *size)).shape == (1, 10)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("resnet20", {}, 269_722),
        ("resnet20", {"shortcut": "B"}, 272_474),
        ("resnet32", {}, 464_154),
        ("resnet56", {}, 853_018),
        ("resnet18", {}, 11_173_962),
        ("resnet18", {"num_classes": 100}, 11_220_132),
        ("resnet18", {"num_classes": 200}, 11_271_432),
        ("resnet18", {"num_classes": 1000, "stem": "imagenet"}, 11_689_512),
        ("resnet50", {"num_classes": 1000, "stem": "imagenet"}, 25_557_032),
        ("vgg16", {}, 14_724_042),
    ],
)
def test_parameter_counts_are_the_published_ones(name, options, expected):
    with torch.device("meta"):
        assert count_parameters(create_model(name, **options)) == expected


def test_resnet20_has_the_published_number_of_conv_weights():
    convs = [m for m in create_model("resnet20").modules() if isinstance(m, nn.Conv2d)]
    assert len(convs) == 19
    assert sum(count_parameters(conv) for conv in convs) == 267_696


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_convs_have_no_bias_and_relus_are_not_in_place(name, options):
    modules = list(create_model(name, width=2, **options).modules())
    assert all(module.bias is None for module in modules if isinstance(module, nn.Conv2d))
    assert not any(module.inplace for module in modules if isinstance(module, nn.ReLU))


@pytest.mark.parametrize("name", MODELS)
def test_networks_can_be_differentiated_twice(name):
    model = create_model(name, width=2).double()
    images = torch.randn(4, 3, 8, 8, dtype=torch.float64, generator=torch.Generator())
    weight = next(model.parameters())
    loss = cross_entropy(model(images), torch.arange(4))
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), weight)
    assert second.isfinite().all()
    assert second.any()


def test_resnet50_has_its_stride_on_the_3x3_convolution():
    block = create_model("resnet50", width=2).get_submodule("stages.1.0")
    convs = [module for module in block.children() if isinstance(module, nn.Conv2d)]
    assert [conv.kernel_size[0] for conv in convs] == [1, 3, 1]
    assert [conv.stride[0] for conv in convs] == [1, 2, 1]


def test_vgg16_halves_the_map_four_times_and_leaves_1x1_alone():
    stages = create_model("vgg16", width=2).get_submodule("stages")
    assert stages(torch.randn(2, 3, 32, 32)).shape == (2, 16, 2, 2)
    assert stages(torch.randn(2, 3, 8, 8)).shape == (2, 16, 1, 1)


def test_shortcut_a_is_the_strided_input_between_zero_channels():
    x = torch.tensor([[[[1.0, 2, 3], [4, 5, 6], [7, 8, 9]]]])
    kept = [[1.0, 3], [7, 9]]
    zero = [[0.0, 0], [0, 0]]
    # Three new channels: one before, two after.
    assert PaddedShortcut(1, 4, stride=2)(x).tolist() == [[zero, kept, zero, zero]]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_gradient_of_shortcut_a_lies_as_its_input_does(layout):
    x = torch.randn(2, 3, 5, 7).contiguous(memory_format=layout).requires_grad_()
    upstream = torch.randn(2, 8, 3, 4).contiguous(memory_format=layout)
    (gradient,) = torch.autograd.grad(PaddedShortcut(3, 8, stride=2)(x), x, upstream)
    expected = torch.zeros(2, 3, 5, 7)
    expected[:, :, ::2, ::2] = upstream[:, 2:5]
    assert torch.equal(gradient, expected)
    assert gradient.is_contiguous(memory_format=layout)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_resnets_have_the_same_gradients():
    """With the pool that is used otherwise, this process ends with a broken heap (torch 2.13)."""
    model = create_model("resnet8")
    runner, x, labels = torch.compile(model), torch.randn(64, 3, 32, 32), torch.arange(64)
    gradients = []
    for network in (model, *[runner] * 10):
        model.zero_grad()
        cross_entropy(network(x), labels % 10).backward()
        gradients.append(torch.cat([p.grad.flatten().clone() for p in model.parameters()]))
    for compiled in gradients[1:]:
        assert (compiled - gradients[0]).norm() < 1e-3 * gradients[0].norm()


def test_shortcut_a_is_used_in_the_two_blocks_that_downsample():
    model = create_model("resnet20")
    padded = {n: m for n, m in model.named_modules() if isinstance(m, PaddedShortcut)}
    assert list(padded) == ["stages.1.0.shortcut", "stages.2.0.shortcut"]
    x = torch.randn(2, 16, 8, 8)
    out = padded["stages.1.0.shortcut"](x)
    assert out.shape == (2, 32, 4, 4)
    assert torch.equal(out[:, 8:24], x[:, :, ::2, ::2])
    assert out[:, :8].count_nonzero() == out[:, 24:].count_nonzero() == 0


@pytest.mark.parametrize("name", MODELS)
def test_width_scales_every_layer(name):
    narrow, wide = shapes(create_model(name, width=4)), shapes(create_model(name, width=12))
    assert narrow.keys() == wide.keys()
    for key, shape in narrow.items():
        outputs = 1 if key.startswith("head") else 3
        inputs = 1 if key in ("stem.conv.weight", "stages.0.conv1.weight") else 3
        scales = (outputs, inputs, 1, 1)[: len(shape)]
        assert wide[key] == tuple(n * scale for n, scale in zip(shape, scales, strict=True)), key


@pytest.mark.parametrize(("name", "width"), [("resnet20", 16), ("resnet18", 64), ("vgg16", 64)])
def test_default_width_is_the_papers(name, width):
    with torch.device("meta"):
        assert shapes(create_model(name)) == shapes(create_model(name, width=width))


@pytest.mark.parametrize(
    ("name", "layer", "variance"),
    [
        # Kaiming normal: 2 / (fan * 9); torch's default is uniform with variance 1 / (3 * fan_in).
        ("resnet20", "stages.2.0.conv1.weight", 2 / (32 * 9)),
        ("vgg16", "stages.1.conv1.weight", 2 / (128 * 9)),
        ("resnet18", "stages.1.0.conv1.weight", 1 / (3 * 64 * 9)),
    ],
)
def test_initial_weights_have_the_stated_variance(name, layer, variance):
    weight = create_model(name).get_parameter(layer)
    assert weight.var().item() == pytest.approx(variance, rel=0.05)
