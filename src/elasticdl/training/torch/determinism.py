"""Determinism: makes PyTorch's random number generators, kernels and compiler reproducible."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_before: tuple[Any, ...] | None = None


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Context manager that seeds PyTorch's random generators, and restores them at its end.

    torch.random.fork_rng does the same for all devices, but takes 50 times as long, too long for a
    small step.
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
    """Make PyTorch use deterministic kernels where they exist, until `restore` is called.

    This applies to the whole process.
    """
    global _before  # noqa: PLW0603 - as global as what it is about
    if _before is None:
        _before = (
            torch.get_deterministic_debug_mode(),
            torch.backends.cudnn.benchmark,
            torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        )
    # cuBLAS reads it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Torch's compiler reads it when it is first used.
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    # An operation without a deterministic kernel only warns, because an error would reject the
    # model. The better known `use_deterministic_algorithms` imports PyTorch's compiler, which takes
    # two seconds.
    torch.set_deterministic_debug_mode("warn")
    torch.backends.cudnn.benchmark = False
    # Otherwise every new tensor is written twice, for programs that read uninitialized memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def restore() -> None:
    """Restore the settings from before the first `be_deterministic`, if it was called."""
    global _before  # noqa: PLW0603
    if _before is not None:
        mode, torch.backends.cudnn.benchmark, fills = _before
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        _before = None


@functools.cache
def keep_uncompiled(module: str) -> None:
    """Exclude a module's functions from torch.compile, for all of this process.

    For the functions behind `numpy.random` and `random`: torch.compile would turn the values that
    they read into constants.
    """
    # Imported late, because it takes a second; an optimizer imports it in any case.
    from torch._dynamo import trace_rules  # noqa: PLC0415

    trace_rules.add(module)
