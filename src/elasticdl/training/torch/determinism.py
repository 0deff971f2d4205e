"""PyTorch's generators and kernels, made to do the same each time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed PyTorch's generators, and put them back afterwards.

    torch.random.fork_rng does the same for every device there may be, which takes 50 times as
    long: too long for a small step.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]
        generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def be_deterministic() -> None:
    """Let the same operations give the same bits each time, from now on in this process."""
    # cuBLAS reads it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Torch's compiler reads it when it is first used.
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    # An operation that has no such kernel warns: refusing it would refuse the model. The better
    # known `use_deterministic_algorithms` imports that compiler, which takes two seconds.
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cudnn.benchmark = False
    # Otherwise every new tensor is written twice, for the sake of programs that read garbage.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
