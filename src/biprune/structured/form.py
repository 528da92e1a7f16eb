"""A small model that is a graph: an ordinary module, which trains, with the user's names."""

from __future__ import annotations

import copy
import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from biprune.structured.calls import filled
from biprune.structured.trace import Size, op_name

# Which argument of an operation is the flag that the mode of the model switches.
_MODES = {
    **dict.fromkeys(("batch_norm", "instance_norm"), 5),
    **dict.fromkeys(("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"), 2),
}


class GraphForm(nn.Module):
    """The graph of a model, for inputs of the sizes that it was traced for.

    `train` and `eval` switch what norms and dropout do. A flag that is set in eval mode already, as
    of a BatchNorm without running statistics, stays. What the model's own code does in train mode
    alone is not there, such as the dropout inside a kernel of attention. Parameters and buffers go
    by the names of the model that was traced; its attributes and methods are not there.
    """

    graph: fx.Graph
    sizes: list[list[Size]]
    dtypes: list[torch.dtype]
    nesting: Any
    keywords: list[str]
    _names: list[str]
    _run: Callable[..., Any]

    def __init__(
        self,
        root: nn.Module,
        graph: fx.Graph,
        sizes: Sequence[Sequence[Size]],
        dtypes: Sequence[torch.dtype],
        nesting: Any,
    ) -> None:
        super().__init__()
        self._modules.update(root._modules)
        self._parameters.update(root._parameters)
        self._buffers.update(root._buffers)
        self._set("graph", graph)
        modes = [node for node in graph.nodes if op_name(node) in _MODES]
        switched = [node.name for node in modes if not node.args[_MODES[op_name(node)]]]
        self._set("_switched", switched)
        self._set("sizes", [list(each) for each in sizes])
        self._set("dtypes", list(dtypes))
        self._set("nesting", nesting)
        self._set("keywords", [str(node.target) for node in graph.find_nodes(op="placeholder")])
        self._set("forward", self._named())
        self._compile()
        self.eval()

    def _set(self, name: str, value: Any) -> None:
        """An attribute of the form's own, whatever the user's tensors and modules are called."""
        vars(self)[name] = value

    def _compile(self) -> None:
        """Make code of the graph that takes its tensors as arguments, before the inputs.

        The names of tensors and inputs, which Python may not allow, are no part of the code.
        """
        plain, copied = fx.Graph(), dict[fx.Node, fx.Node]()
        read = self.graph.find_nodes(op="get_attr")
        names = list(dict.fromkeys(str(node.target) for node in read))
        given = {name: plain.placeholder(f"tensor_{i}") for i, name in enumerate(names)}
        for i, node in enumerate(self.graph.find_nodes(op="placeholder")):
            copied[node] = plain.placeholder(f"input_{i}")
        for node in self.graph.nodes:
            if node.op == "get_attr":
                copied[node] = given[str(node.target)]
            elif node.op != "placeholder":
                copied[node] = plain.node_copy(node, copied.__getitem__)
        code = plain.python_code("self")
        space = dict(code.globals)
        exec(compile(code.src, "<biprune graph>", "exec"), space)
        self._set("_names", names)
        self._set("_run", space["forward"])

    def _named(self) -> Callable[..., Any]:
        """The forward, with named arguments: tools that export ask for the names."""
        # Held weakly: a model that holds itself keeps its memory long after it is dropped.
        form = weakref.ref(self)

        def forward(*args: Tensor, **kwargs: Tensor) -> Any:
            own = form()
            assert own is not None
            inputs = [*args, *(kwargs[name] for name in own.keywords[len(args) :])]
            if not torch.compiler.is_compiling():  # sizes are symbols then
                own._check(inputs)
            tensors = [held(own, name) for name in own._names]
            return filled(own.nesting, own._run(own, *tensors, *inputs))

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        named = [inspect.Parameter(name, kind) for name in self.keywords]
        forward.__signature__ = inspect.Signature(named)  # pyright: ignore
        return forward

    def _check(self, inputs: Sequence[Tensor]) -> None:
        """Refuse sizes that the graph was not made for: they would fail late, or not at all."""
        for place, (keyword, tensor) in enumerate(zip(self.keywords, inputs, strict=True)):
            if not self.fits(inputs[: place + 1]):
                wanted = ", ".join(size.name or str(size.low) for size in self.sizes[place])
                raise ValueError(
                    f"This model is a graph that takes `{keyword}` of shape ({wanted}), got "
                    f"{tuple(tensor.shape)}. Sizes in it are those of the example it was shrunk "
                    "with: shrink again with an example of the size that you need."
                )

    def fits(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the graph was made for the sizes of these, its first inputs."""
        named: dict[str, int] = {}
        for tensor, sizes in zip(inputs, self.sizes, strict=False):
            if tensor.ndim != len(sizes):
                return False
            for length, size in zip(tensor.shape, sizes, strict=True):
                within = length >= size.low and (size.high is None or length <= size.high)
                same = not size.name or named.setdefault(size.name, int(length)) == length
                if not within or not same:
                    return False
        return True

    def train(self, mode: bool = True) -> GraphForm:
        """Switch what BatchNorm and dropout do."""
        super().train(mode)
        for node in self.graph.nodes:
            if node.name in self._switched:
                place = _MODES[op_name(node)]
                node.args = (*node.args[:place], mode, *node.args[place + 1 :])
        self._compile()
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphForm:
        root = nn.Module()
        root._modules = copy.deepcopy(self._modules, memo)
        root._parameters = copy.deepcopy(self._parameters, memo)
        root._buffers = copy.deepcopy(self._buffers, memo)
        found = GraphForm(root, copy.deepcopy(self.graph), self.sizes, self.dtypes, self.nesting)
        found._set("_switched", [*vars(self)["_switched"]])
        found.train(self.training)
        for name, value in vars(self).items():
            if name not in vars(found):
                vars(found)[name] = copy.deepcopy(value, memo)
        return found


def put(root: nn.Module, name: str, value: Tensor) -> None:
    """Hold a tensor under a name with dots, in modules made for it."""
    *path, last = name.split(".")
    for part in path:
        root = root._modules.setdefault(part, nn.Module())  # pyright: ignore
    (root._parameters if isinstance(value, nn.Parameter) else root._buffers)[last] = value  # pyright: ignore


def held(root: nn.Module, name: str) -> Tensor:
    """The tensor that `put` holds, or what took its place."""
    *path, last = name.split(".")
    for part in path:
        root = root._modules[part]  # pyright: ignore
    found = root._parameters.get(last)
    return root._buffers[last] if found is None else found  # pyright: ignore
