"""What a command computes with."""

from __future__ import annotations


def check_device(device: str) -> None:
    """Refuse a device that this machine does not have."""
    import torch

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"`--device` {device!r} cannot be used here: {reason}") from None


def use_machine(threads: int | None) -> None:
    """Compute with so many threads, by default as many as this process may have cores.

    Torch counts the machine's cores, also in a container that is given few of them, where threads
    that wait for one another make everything slow. Memory, once freed, is kept for the next step.
    One of several processes, as torchrun starts them, is refused.
    """
    import torch
    from joblib import cpu_count

    from biprune.core.checks import check_whole
    from biprune.training.distributed import check_one_process
    from biprune.training.heap import keep_freed_memory

    check_one_process("biprune")
    if threads is None:
        threads = min(torch.get_num_threads(), cpu_count())
    check_whole("--threads", threads, at_least=1)
    torch.set_num_threads(threads)
    keep_freed_memory()
