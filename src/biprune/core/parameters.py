"""The tensors of a model by the names that the user knows, and which of them can be pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.optim.swa_utils import AveragedModel

from biprune.core.structure import Structure

Patterns = str | Sequence[str] | None

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
_ATTENTION_WEIGHTS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside `torch.compile`, parallel, averaging or Fabric's wrappers."""
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel, AveragedModel)
    while True:
        if isinstance(model, wrappers) or type(model).__name__ == "_FabricModule":
            model = model.module  # pyright: ignore[reportAssignmentType]
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            return model


def own_name(name: str) -> str:
    """The name that the user knows, whatever parts of the model are compiled.

    >>> own_name("body._orig_mod.0.weight")
    'body.0.weight'
    """
    return name.replace("_orig_mod.", "")


def parameter_names(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once, by the name the user knows: tied tensors go by their first name."""
    named = unwrap(model).named_parameters()
    return {own_name(name): parameter for name, parameter in named}


def prunable(
    model: nn.Module,
    structure: Structure,
    *,
    include: Patterns = None,
    exclude: Patterns = None,
    found: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> dict[str, nn.Parameter]:
    """The tensors whose units may be pruned, in `named_parameters` order.

    By default they are, if they are trainable:

    - `weight`: weights of convolutions, linear layers and attention, and those of `found`;
    - `filter`: weights of convolutions;
    - `channel`: the same without the first convolution, whose input is the data, and without
      grouped ones, whose slices are not input channels;
    - `n:m`: as for `weight`, where they divide into blocks.

    Norms, biases, frozen and complex tensors are never among them.

    Args:
        model: Any module, wrapped or not.
        structure: What a unit is.
        include: Shell-style patterns of names, in place of the default; they may name embeddings.
        exclude: Shell-style patterns of names to leave out.
        found: Output dimensions of further weights, known from a run of the model (see `uses`).

    Raises:
        ValueError: Nothing is left, a pattern matches nothing, or a weight is parametrized.
    """
    if structure.spans_tensors:
        return _of_groups(model, structure)
    model = unwrap(model)
    _refuse_parametrized(model, structure, include, exclude)
    candidates = _default_candidates(model, structure)
    parameters = parameter_names(model)
    if structure.dim is None:
        candidates |= {id(parameters[name]) for name in found}
    if include is not None:
        if structure.dim is None:
            candidates = {id(p) for p in parameters.values() if p.ndim >= 2}
            candidates -= {id(p) for p in norm_parameters(model)}
        candidates &= matching(model, include, "include")
    if exclude is not None:
        candidates -= matching(model, exclude, "exclude")

    chosen = {n: p for n, p in parameters.items() if id(p) in candidates and _can_be_scored(p)}
    if (size := structure.block) is not None:
        reasons = {n: not_in_blocks(model, p, size, found.get(n)) for n, p in chosen.items()}
        chosen = {name: p for name, p in chosen.items() if reasons[name] is None}
        if reasons and not chosen:
            listed = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise ValueError(f"The model has nothing to prune by {structure.name} ({listed}).")
    if not chosen:
        hint = _hint(model, structure, include)
        raise ValueError(
            f"The model has nothing to prune by {structure.name}: no trainable "
            f"{'weight of a convolution' if structure.dim is not None else 'weight'} is left after "
            f"`include` (={include!r}) and `exclude` (={exclude!r}).{hint}"
        )
    return chosen


def _of_groups(model: nn.Module, structure: Structure) -> dict[str, nn.Parameter]:
    if structure.coupled is None:
        raise ValueError(
            "The structure 'group' depends on the model: `prune` and `attach` find its groups."
        )
    parameters = parameter_names(model)
    return {name: parameters[name] for name in structure.coupled.tensors}


def _hint(model: nn.Module, structure: Structure, include: Patterns) -> str:
    """Names that `include` could have, since only some classes of layers are pruned by default."""
    if structure.dim is not None or include is not None:
        return ""
    others = [n for n, p in parameter_names(model).items() if _can_be_scored(p) and p.ndim > 1]
    likely = [*unexplained(model, structure), *others]  # embeddings last
    named = f", such as include={likely[0]!r}" if likely else ""
    return (
        f" Embeddings, recurrent layers and modules of your own are pruned if `include` names them"
        f'{named}; include="*" names everything.'
    )


def unexplained(model: nn.Module, structure: Structure) -> list[str]:
    """Parameters that could be weights, but do not belong to a layer of a known class."""
    model = unwrap(model)
    known = _default_candidates(model, structure) | {id(p) for p in norm_parameters(model)}
    known |= {id(m.weight) for m in model.modules() if isinstance(m, _EMBEDDINGS)}
    named = parameter_names(model).items()
    return [n for n, p in named if _can_be_scored(p) and p.ndim > 1 and id(p) not in known]


def _can_be_scored(parameter: nn.Parameter) -> bool:
    return parameter.requires_grad and parameter.is_floating_point()


def _default_candidates(model: nn.Module, structure: Structure) -> set[int]:
    """Ids of the tensors a structure covers by default. What is tied to an embedding is not."""
    convs = [m for m in model.modules() if isinstance(m, _ConvNd)]
    if structure.dim is not None:
        convs = [m for m in convs if not isinstance(m, _ConvTransposeNd)]
        if structure.dim == 1:
            convs = [m for m in convs[1:] if m.groups == 1]
        return {id(m.weight) for m in convs}
    ids = {id(m.weight) for m in convs}
    ids |= {id(m.weight) for m in model.modules() if isinstance(m, (nn.Linear, nn.Bilinear))}
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            ids |= {id(getattr(module, name)) for name in _ATTENTION_WEIGHTS}
    embeddings = (m for m in model.modules() if isinstance(m, _EMBEDDINGS))
    return ids - {id(m.weight) for m in embeddings}


def not_in_blocks(
    model: nn.Module,
    weight: nn.Parameter,
    size: int,
    outputs: Sequence[int] | None = None,
) -> str | None:
    """Why a weight does not divide into blocks of `size` along dimension 1; None if it does.

    `outputs` are its output dimensions, if a run has told them.
    """
    if outputs is not None and 1 in outputs:
        return "its inputs are not its second dimension"
    transposed = (m for m in unwrap(model).modules() if isinstance(m, _ConvTransposeNd))
    if any(module.weight is weight for module in transposed):
        return "it is a transposed convolution"
    if weight.shape[1] % size:
        return f"its {weight.shape[1]} inputs do not divide by {size}"
    return None


def num_weights(model: nn.Module) -> int:
    """How many numbers the model's parameters hold; tied ones count once."""
    return sum(p.numel() for p in parameter_names(model).values() if p.is_floating_point())


def transposed_groups(model: nn.Module) -> dict[str, int]:
    """The number of groups of each transposed convolution, by the name of its weight."""
    convs = (m for m in unwrap(model).modules() if isinstance(m, _ConvTransposeNd))
    groups = {id(conv._parameters.get("weight")): conv.groups for conv in convs}
    return {name: groups[id(p)] for name, p in parameter_names(model).items() if id(p) in groups}


def norm_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The trainable weights and biases of norms."""
    norms = (m for m in unwrap(model).modules() if isinstance(m, _NORMS))
    return [p for norm in norms for p in norm.parameters() if p.requires_grad]


def _as_list(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns or ())


def _matches(name: str, pattern: str) -> bool:
    """Whether a pattern covers a name; both `layer1.*` and `layer1` cover the whole of layer1."""
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def matching(model: nn.Module, patterns: Patterns, argument: str) -> set[int]:
    """Ids of the parameters that have a name matching a pattern; each must match something."""
    every = unwrap(model).named_parameters(remove_duplicate=False)
    named = [(own_name(name), parameter) for name, parameter in every]
    matched: set[int] = set()
    for pattern in _as_list(patterns):
        hits = {id(parameter) for name, parameter in named if _matches(name, pattern)}
        if not hits:
            raise ValueError(
                f"`{argument}` has the pattern {pattern!r}, which matches no parameter. "
                f"Names look like {', '.join(name for name, _ in named[:3])}."
            )
        matched |= hits
    return matched


def _refuse_parametrized(
    model: nn.Module, structure: Structure, include: Patterns, exclude: Patterns
) -> None:
    """Refuse weights that are computed from other tensors: those cannot hold z."""
    weight_of: dict[type[nn.Module], str] = {_ConvNd: "weight"}
    if structure.dim is None:
        weight_of |= {nn.Linear: "weight", nn.MultiheadAttention: "in_proj_weight"}
    for name, module in model.named_modules():
        weight = next((w for kind, w in weight_of.items() if isinstance(module, kind)), None)
        if weight is None or weight in module._parameters:
            continue
        weight = f"{name}.{weight}" if name else weight
        is_meant = include is None or any(_matches(weight, p) for p in _as_list(include))
        if is_meant and not any(_matches(weight, p) for p in _as_list(exclude)):
            raise ValueError(
                f"{weight!r} is already parametrized or pruned by another tool. "
                "Remove that first (torch.nn.utils.parametrize.remove_parametrizations, or "
                "torch.nn.utils.prune.remove), or leave the layer out with `exclude`."
            )
