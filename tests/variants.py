"""Every architecture of the registry with every option, and what tells two nets apart."""

from biprune.models import MODELS

CIFAR_RESNETS = ("resnet8", "resnet20", "resnet32", "resnet56")

# (model, what to create it with) for every architecture and every option it has.
VARIANTS = [
    *[(name, {}) for name in MODELS],
    *[(name, {"shortcut": "B"}) for name in CIFAR_RESNETS],
    ("resnet18", {"stem": "imagenet"}),
    ("resnet50", {"stem": "imagenet"}),
]


def shapes(model):
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
