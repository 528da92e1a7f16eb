"""What is tried on each architecture, stage by stage, each with its figures or its reason.

weights     90 % of the single weights, by one step of BiP: the count is compared with an own one
groups      half the multiply-adds, by magnitudes of groups and one step of training
certified   what was pruned is removed, and the small model compared with the masked one, on inputs
            that the certificate never saw, in float64
files       ticket and small model saved and loaded, bit for bit
onnx        the small model as an ONNX file, compared with the masked model
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

import biprune
from biprune.runtime.onnx import OnnxModel
from biprune.structured.calls import output_tensors
from biprune.structured.certificate import raised
from zoo_models import Built, Inputs

STAGES = ("weights", "groups", "certified", "files", "onnx")
SPARSITY, MACS, EASIER = 0.9, 0.5, 0.8
EXACT, CLOSE = 1e-9, 1e-3  # differences, of the largest output: in float64, and of ONNX in float32
FRESH = 5  # samples of the comparison, one more than the model was traced with

Figures = dict[str, Any]
Report = Callable[[str, Any], None]


def run(build: Callable[[], Built], report: Report) -> None:
    """All stages; a stage that needs one that failed is not reported."""
    torch.manual_seed(0)
    model, inputs = build()
    prepare_(model, inputs)
    report("parameters", sum(p.numel() for p in model.parameters()))
    attempt("weights", report, lambda: weights(model, inputs))
    tickets: list[biprune.Ticket] = []
    attempt("groups", report, lambda: groups(model, inputs, MACS, tickets))
    if not tickets:  # what can be reached shows whether the rest works
        try:
            groups(model, inputs, EASIER, tickets)
        except Exception:  # it has been reported
            return
    ticket, found = tickets[0], []
    attempt("certified", report, lambda: certified(ticket, inputs, found))
    if found:
        attempt("files", report, lambda: files(ticket, found[0], build, inputs))
        attempt("onnx", report, lambda: onnx(ticket, inputs))


def attempt(stage: str, report: Report, work: Callable[[], Figures]) -> None:
    """Report what a stage gives, or why it fails, and the seconds of a processor that it took."""
    start = time.process_time()
    figures: Figures
    try:
        figures = work()
    except Exception as error:  # whatever the model, torch or biprune raises
        said = str(error).replace(tempfile.gettempdir(), "")
        figures = {"error": f"{type(error).__name__}: {said}"[:600]}
    figures["seconds"] = round(time.process_time() - start, 1)
    report(stage, figures)


@torch.no_grad()
def prepare_(model: nn.Module, inputs: Inputs) -> None:
    """Give constants of a fresh model random values, and BatchNorm the statistics of forwards.

    Fresh scales of one, biases of zero and layer scales of 1e-6 hide what a comparison is to see.
    """
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
            drawn = torch.rand(parameter.shape, generator=generator)
            value = float(parameter.flatten()[0])
            parameter.copy_(0.2 * drawn - 0.1 if value == 0 else (0.5 + drawn) * max(value, 0.3))
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    usual = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = None
        norm.reset_running_stats()
    model.train()
    for seed in (1, 2):
        called(model, drawn_like(inputs, 8, seed))
    for norm, momentum in zip(norms, usual, strict=True):
        norm.momentum = momentum
    model.eval()


def weights(model: nn.Module, inputs: Inputs) -> Figures:
    computed = [n for n, m in model.named_modules() if is_parametrized(m)]  # no weight to prune
    excluded = {"exclude": computed} if computed else {}
    ticket = pruned(model, inputs, "bip", sparsity=SPARSITY, **excluded)
    masks, state = ticket.masks, dict(ticket.model.named_parameters(remove_duplicate=False))
    total = sum(mask.numel() for mask in masks.values())
    gone = sum(int((~mask).sum()) for mask in masks.values())
    alive = sum(int(torch.count_nonzero(state[name][~mask])) for name, mask in masks.items())
    known = sum(p.numel() for p in known_weights(model))
    check(gone == round(SPARSITY * total), f"{gone} of {total} weights are pruned")
    check(alive == 0, f"{alive} pruned weights are not zero")
    check(total >= known, f"{total} of at least {known} weights were offered")
    return {"pruned": gone, "of": total, **excluded}


def known_weights(model: nn.Module) -> list[Tensor]:
    """Weights of the layers that everybody knows, but for those that an embedding shares."""
    kinds = (nn.Linear, nn.modules.conv._ConvNd)
    layers = [m for m in model.modules() if isinstance(m, kinds) or type(m).__name__ == "Conv1D"]
    layers = [layer for layer in layers if not is_parametrized(layer)]
    shared = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    found = {id(layer.weight): layer.weight for layer in layers}
    return [weight for key, weight in found.items() if key not in shared]  # pyright: ignore


def groups(model: nn.Module, inputs: Inputs, kept: float, tickets: list[biprune.Ticket]) -> Figures:
    target: Figures = {"structure": "group", "budget": {"macs": kept}}
    streams = {}
    try:
        ticket = pruned(model, inputs, "magnitude", **target)
    except ValueError:  # too little can go as long as residual streams stay
        streams = {"streams": True}
        ticket = pruned(model, inputs, "magnitude", **target, **streams)
    tickets.append(ticket)
    units = [int(mask.total) for mask in ticket.masks.per_layer().values()]
    reasons = Counter(ticket.left_out.values())
    return {
        "groups": len(units),
        "units": sum(units),
        "left_out": dict(reasons.most_common(6)),
        **streams,
    }


def certified(ticket: biprune.Ticket, inputs: Inputs, found: list[nn.Module]) -> Figures:
    small = ticket.shrink(inputs)
    found.append(small)
    certificate = small.certificate
    assert isinstance(certificate, biprune.Certificate)
    fresh = drawn_like(inputs, FRESH, seed=77)
    masked, ours = exact_outputs(ticket.model, fresh), exact_outputs(small, fresh)
    error = difference(masked, ours)
    before, after = certificate.before, certificate.after
    figures = {
        "form": certificate.form,
        "parameters": round(after.parameters / before.parameters, 4),
        "macs": round(after.macs / before.macs, 4),
        "difference": float(f"{error:.0e}"),
        "spread": float(f"{spread(masked):.0e}"),
    }
    if certificate.form == "graph":
        figures["why"] = certificate.not_module[:200]
    kept = ticket.chosen["budget"]["macs"]
    check(error <= EXACT, f"the small model differs by {error:.1e}")
    check(figures["macs"] <= kept, f"{figures['macs']} of the multiply-adds are left, not {kept}")
    return figures


def files(
    ticket: biprune.Ticket, small: nn.Module, build: Callable[[], Built], inputs: Inputs
) -> Figures:
    fresh = drawn_like(inputs, FRESH, seed=78)
    with tempfile.TemporaryDirectory() as folder:
        again = biprune.load_ticket(ticket.save(Path(folder, "ticket")), model=build()[0])
        check(same(again.model, ticket.model, fresh), "the loaded ticket is another")
        saved = biprune.save_small(small, Path(folder, "small"))
        check(
            same(biprune.load_small(saved, model=build()[0]), small, fresh), "the small is another"
        )
    return {}


def onnx(ticket: biprune.Ticket, inputs: Inputs) -> Figures:
    fresh = drawn_like(inputs, FRESH, seed=79)
    with tempfile.TemporaryDirectory() as folder:
        file = ticket.export(Path(folder, "small.onnx"), example_input=inputs).path
        found = OnnxModel(file)(*arguments(fresh))
    with torch.no_grad():
        error = difference([*output_tensors(called(ticket.model, fresh))], found)
    check(error <= CLOSE, f"the file differs by {error:.1e}")
    return {"difference": float(f"{error:.0e}")}


def pruned(model: nn.Module, inputs: Inputs, method: str, **target: Any) -> biprune.Ticket:
    """A ticket after one step on the squares of what the model returns."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        found = [t for t in output_tensors(called(model, batch)) if t.is_floating_point()]
        return torch.stack([t.float().square().mean() for t in found]).sum()

    return biprune.prune(
        model, [inputs], method, epochs=1, lr=1e-4, loss=loss, example_input=inputs, **target
    )


def called(model: nn.Module, inputs: Inputs) -> object:
    """What the model returns."""
    return model(**inputs) if isinstance(inputs, dict) else model(*arguments(inputs))


def arguments(inputs: Inputs) -> tuple[Tensor, ...]:
    """The inputs in their order."""
    if isinstance(inputs, dict):
        return tuple(inputs.values())
    return (inputs,) if isinstance(inputs, Tensor) else inputs


def drawn_like(inputs: Inputs, samples: int, seed: int) -> Any:
    """Fresh inputs: tokens that the model has not seen together, normal numbers for the rest."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(tensor: Tensor) -> Tensor:
        shape = (samples, *tensor.shape[1:])
        if tensor.is_floating_point():
            return torch.randn(shape, generator=generator, dtype=tensor.dtype)
        return torch.randint(3, 100, shape, generator=generator, dtype=tensor.dtype)

    if isinstance(inputs, dict):
        return {name: drawn(tensor) for name, tensor in inputs.items()}
    found = tuple(drawn(tensor) for tensor in arguments(inputs))
    return found[0] if isinstance(inputs, Tensor) else found


@torch.no_grad()
def exact_outputs(model: nn.Module, inputs: Inputs) -> list[Tensor]:
    """Outputs in float64, where models themselves cast to less as well."""
    import copy

    own = copy.deepcopy(model).double().eval()
    cast = {
        name: tensor.double() if tensor.is_floating_point() else tensor
        for name, tensor in named(inputs)
    }
    with raised(torch.float64):
        torch.manual_seed(0)
        found = own(**cast) if isinstance(inputs, dict) else own(*cast.values())
        return [*output_tensors(found)]


def named(inputs: Inputs) -> Iterator[tuple[str, Tensor]]:
    if isinstance(inputs, dict):
        yield from inputs.items()
    else:
        yield from ((str(place), tensor) for place, tensor in enumerate(arguments(inputs)))


def difference(expected: list[Tensor], found: list[Tensor]) -> float:
    """The largest difference, of the largest number in its tensor; infinite if shapes differ."""
    if [t.shape for t in expected] != [t.shape for t in found] or not expected:
        return float("inf")
    errors = [0.0]
    for one, other in zip(expected, found, strict=True):
        if one.numel():
            apart = (one.double() - other.double()).abs().max()
            errors.append(float(apart / one.double().abs().max().clamp(min=1e-300)))
    return float("inf") if any(error != error for error in errors) else max(errors)


def spread(outputs: list[Tensor]) -> float:
    """How far samples are apart in the output that differs most, of its largest number."""
    batched = [t.double() for t in outputs if t.ndim and len(t) == FRESH]
    apart = [float((t - t[:1]).abs().max() / t.abs().max().clamp(min=1e-300)) for t in batched]
    return max([0.0, *apart])


@torch.no_grad()
def same(one: nn.Module, other: nn.Module, inputs: Inputs) -> bool:
    """Whether two models have the same tensors and outputs, bit for bit."""
    states = one.state_dict(), other.state_dict()
    if states[0].keys() != states[1].keys():
        return False
    tensors = [(states[0][n], states[1][n]) for n in states[0]]
    found = (output_tensors(called(model.eval(), inputs)) for model in (one, other))
    tensors += zip(*found, strict=True)
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in tensors)


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
