"""A slice of the zoo of public architectures, where their packages are installed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from biprune.structured.find import find_groups
from biprune.structured.removal import zero_
from biprune.structured.shrink import shrink
from zoo_models import zoo

# How many groups and units there are, and what is left of the model if half of them go.
SLICE = {
    "transformers/bert": (5, 584, "module"),
    "transformers/gpt2": (4, 520, "module"),
    "transformers/llama": (4, 516, "module"),
    "transformers/t5": (9, 1044, "graph"),
    "transformers/vit": (4, 520, "module"),
    "transformers/mamba": (6, 536, "module"),
    "timm/vit_tiny_patch16_224": (24, 9252, "module"),
    "timm/levit_128s": (28, 7362, "graph"),
    "timm/ghostnet_050": (31, 4064, "module"),
    "torchvision/resnet18": (12, 2880, "module"),
    "torchvision/mobilenet_v2": (25, 9128, "module"),
    "torchvision/shufflenet_v2_x0_5": (80, 2938, "graph"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SLICE)
def test_half_of_all_units_go(name: str) -> None:
    if any(find_spec(package) is None for package in (name.partition("/")[0], "torchvision")):
        pytest.skip("the extra `zoo` is not installed")
    groups, units, form = SLICE[name]
    torch.manual_seed(0)
    model, example = zoo()[name]()
    found = find_groups(model, example)
    assert (len(found.groups), sum(group.size for group in found.groups)) == (groups, units)
    keep = {group.name: torch.arange(group.size) % 2 == 0 for group in found.groups}
    zero_(model, found.groups, keep)
    certificate = shrink(model, found, example).certificate
    assert certificate.form == form  # pyright: ignore[reportAttributeAccessIssue]
    assert certificate.max_error < 1e-12  # pyright: ignore[reportAttributeAccessIssue]
