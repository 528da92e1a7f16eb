"""Networks by name. They are plain modules and know nothing of pruning."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from types import NoneType

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from biprune.models.resnet import BasicBlock, Bottleneck, cifar_resnet, imagenet_resnet
from biprune.models.vgg import vgg16

__all__ = ["MODELS", "ModelEntry", "check_model", "create_model", "skeleton"]

JSON_SCALARS = (str, int, float, bool, NoneType)


@dataclass(frozen=True)
class ModelEntry:
    """A network that `create_model` knows; `factory` takes keyword arguments only."""

    factory: Callable[..., nn.Module]
    description: str


MODELS: dict[str, ModelEntry] = {
    "resnet8": ModelEntry(partial(cifar_resnet, 8), "ResNet-8 for small images, 0.08 M parameters"),
    "resnet20": ModelEntry(
        partial(cifar_resnet, 20), "ResNet-20 for small images, 0.27 M parameters"
    ),
    "resnet32": ModelEntry(
        partial(cifar_resnet, 32), "ResNet-32 for small images, 0.46 M parameters"
    ),
    "resnet56": ModelEntry(
        partial(cifar_resnet, 56), "ResNet-56 for small images, 0.85 M parameters"
    ),
    "resnet18": ModelEntry(
        partial(imagenet_resnet, BasicBlock, (2, 2, 2, 2)),
        "ResNet-18 with a small or ImageNet stem, 11.2 M parameters",
    ),
    "resnet50": ModelEntry(
        partial(imagenet_resnet, Bottleneck, (3, 4, 6, 3)),
        "ResNet-50 with a small or ImageNet stem, 23.5 M parameters",
    ),
    "vgg16": ModelEntry(vgg16, "VGG-16 with batch norm and one linear layer, 14.7 M parameters"),
}


def create_model(
    name: str,
    *,
    num_classes: int = 10,
    in_channels: int = 3,
    width: int | None = None,
    seed: int = 0,
    **options: object,
) -> nn.Module:
    """Build a network of `MODELS`, or your own from "package.module:factory".

    Weights are drawn inside a forked RNG; the caller's is untouched.

    Args:
        name: A name of `MODELS`, or "package.module:factory", which is imported.
        num_classes: Outputs. Your own factory gets it if it has such a parameter.
        in_channels: Channels of the images. Your own factory gets it if it has such a parameter.
        width: Channels of the first stage; all others scale with it.
        seed: Of the weights.
        options: Those of the network's function, such as `shortcut="B"` for resnet20.

    Returns:
        The network. Its attribute `created_by` records every argument but the seed, so that
        `create_model(**model.created_by)` has the same architecture. When such a record comes from
        a file, check that its name is in `MODELS`, since other names import code. The attribute is
        missing if your own factory was given an argument that JSON has no word for.

    Raises:
        ValueError: The network is unknown, or does not take such an argument.

    Example:
        >>> model = create_model("resnet20", num_classes=100, seed=1)
        >>> sum(param.numel() for param in model.parameters())
        275572
    """
    sizes = {"num_classes": num_classes, "in_channels": in_channels}
    explicit = options if width is None else {"width": width, **options}
    for argument, value in {**sizes, "width": width}.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ValueError(f"`{argument}` must be an integer of at least 1, got {value!r}.")

    factory = _import_factory(name) if ":" in name else _registered_factory(name)
    arguments = _arguments(name, factory, sizes, explicit)

    with torch.random.fork_rng(devices=[]):
        # Unlike torch.manual_seed, this leaves the generators of GPUs alone.
        torch.default_generator.manual_seed(seed)
        model = _built(name, factory, arguments)

    if not isinstance(model, nn.Module):
        raise ValueError(f"Model {name!r} must return an nn.Module, got {type(model).__name__}.")
    if all(isinstance(value, JSON_SCALARS) for value in arguments.values()):
        vars(model)["created_by"] = {"name": name, **arguments}
    return model


def _built(name: str, factory: Callable[..., object], arguments: Mapping[str, object]) -> object:
    try:
        return factory(**arguments)
    except Exception as error:
        if name in MODELS:  # ours say what is wrong themselves
            raise
        raise ValueError(
            f"Model {name!r} cannot be built: {type(error).__name__}: {error}"
        ) from error


def check_model(name: str, options: Mapping[str, object]) -> None:
    """Refuse an unknown network or option, at no cost: it is built without memory.

    A network of the user's own is not built, since it may depend on the sizes of the data.
    """
    if ":" not in name:
        skeleton(name, **options)


def skeleton(name: str, **options: object) -> nn.Module:
    """The network that `create_model` would build, without memory for its tensors."""
    with torch.device("meta"), _Undrawn():
        return create_model(name, **options)  # pyright: ignore[reportArgumentType]


class _Undrawn(TorchFunctionMode):
    """Draw no initial values: to do so on meta, torch would import its compiler for seconds."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return args[0] if func is torch.Tensor.normal_ else func(*args, **kwargs)


def _registered_factory(name: str) -> Callable[..., nn.Module]:
    if name in MODELS:
        return MODELS[name].factory

    likeness = {known: SequenceMatcher(None, name.lower(), known).ratio() for known in MODELS}
    closest = max(likeness, key=likeness.__getitem__)
    hint = f" Closest: {closest}." if likeness[closest] > 0.6 else ""
    raise ValueError(
        f"Unknown model {name!r}. Models: {', '.join(MODELS)}.{hint} "
        "Your own: 'package.module:factory'."
    )


def _import_factory(name: str) -> Callable[..., object]:
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise ValueError(f"A model of your own is named 'package.module:factory', got {name!r}.")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"Cannot import model {name!r}: {error}. Is its folder on PYTHONPATH?"
        ) from error

    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise ValueError(
            f"Cannot import model {name!r}: module {module_name!r} has no function {attribute!r}."
        )
    return factory


def _arguments(
    name: str,
    factory: Callable[..., object],
    sizes: Mapping[str, int],
    explicit: Mapping[str, object],
) -> dict[str, object]:
    """What the factory is called with: `sizes` may be dropped, `explicit` may not.

    Of a network in `MODELS` defaults are among them, so that a record stays true if they change.
    """
    signature = inspect.signature(factory)
    kinds = {parameter.name: parameter.kind for parameter in signature.parameters.values()}
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds.values()
    by_name = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    accepted = [parameter for parameter, kind in kinds.items() if kind in by_name]

    unknown = [] if takes_any else [option for option in explicit if option not in accepted]
    if unknown:
        raise ValueError(
            f"Model {name!r} does not take `{'`, `'.join(unknown)}`. "
            f"It takes: {', '.join(accepted) or 'nothing'}."
        )

    fitting = {size: value for size, value in sizes.items() if takes_any or size in accepted}
    try:
        bound = signature.bind(**fitting, **explicit)
    except TypeError as error:
        raise ValueError(f"Cannot call model {name!r}: {error}. Pass it as an option.") from error
    if name not in MODELS:
        return {**fitting, **explicit}
    bound.apply_defaults()
    return bound.arguments
