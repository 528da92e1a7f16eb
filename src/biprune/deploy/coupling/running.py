"""Whether a user's model runs at all; said in words before anything is done."""

from __future__ import annotations

from torch import Tensor, nn

from biprune.deploy.outputs import outputs


def check_runs(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Refuse inputs that the model does not run on."""
    try:
        outputs(model, inputs, seed=0)
    except Exception as error:  # whatever a forward of the user's raises
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in inputs)
        raise ValueError(
            f"The model does not run on `example_input` of shape {shapes} "
            f"({type(error).__name__}: {first_line(error)}). Pass an `example_input` that it runs "
            "on, with samples along the first dimension: a batch, or a tuple of arguments."
        ) from error


def first_line(error: Exception) -> str:
    """The first line of what an exception says."""
    return (str(error).strip().splitlines() or [""])[0]
