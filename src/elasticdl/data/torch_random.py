"""Separates PyTorch's random numbers in users' input functions from those that the model draws.

A process has one generator behind `torch.rand` and similar operations, and the model draws from it
in another thread. So in the thread that prepares batches, and only there, operations that draw use
a separate generator. (Operations on an accelerator, and those that accept no generator, are not
affected.)

In that thread, `torch.manual_seed`, and functions that read or set the generator's state, also act
on the separate generator. Otherwise a dataset that sets a seed, to rotate a picture and its mask by
the same angle, would change the numbers that the model draws instead of its own.

Callers: `engines/randomness.py` and `training/framework_settings.py`, where PyTorch is loaded
anyway.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.cuda.random
from torch.utils._python_dispatch import TorchDispatchMode

# Functions that would change what the model draws on a GPU.
_OF_GPUS = ("manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state")


class _Threads(threading.local):
    """The generators of the `UseGenerator` blocks that this thread is in, the innermost last."""

    def __init__(self) -> None:
        self.generators: list[torch.Generator] = []


_threads = _Threads()


class _GeneratorOfThread:
    """Replaces `torch.random.default_generator`; forwards to the generator of the current thread.

    In a `UseGenerator` block, this is the generator of the block, elsewhere PyTorch's default
    generator. Functions such as `torch.manual_seed` then act on the right one.
    """

    def __getattr__(self, name: str) -> Any:
        inner = _threads.generators
        return getattr(inner[-1] if inner else torch.default_generator, name)


class UseGenerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager in which PyTorch operations of this thread draw from a given generator.

    Args:
        generator: Generator for random numbers on the CPU; its state advances with each draw.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator
        _redirect_functions()

    def __enter__(self) -> Any:
        """Begin to draw from the block's generator, in the current thread."""
        _threads.generators.append(self._generator)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *exception: object) -> None:
        """Draw again from the generator that was used before the block."""
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        _threads.generators.pop()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a PyTorch operation; PyTorch calls this for every operation in the block.

        An operation that would draw from PyTorch's default generator receives the generator of the
        block instead.
        """
        del types
        named = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded in func.tags and _is_on_cpu(args, named):
            func, named = self._with_generator(func, args, named)
        return func(*args, **named)

    def _with_generator(
        self, func: Any, args: Sequence[Any], named: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        names = [argument.name for argument in func._schema.arguments]  # noqa: SLF001 - no public name
        if "generator" in names:
            is_given = names.index("generator") < len(args) or not _draws_from_default(
                named.get("generator")
            )
            return func, named if is_given else {**named, "generator": self._generator}
        # torch.rand and similar operations have another overload for it.
        overload = func._overloadname  # noqa: SLF001 - no public name
        other = "generator" if overload == "default" else f"{overload}_generator"
        if other not in func.overloadpacket.overloads():
            return func, named
        return getattr(func.overloadpacket, other), {**named, "generator": self._generator}


@functools.cache
def _redirect_functions() -> None:
    """Patch PyTorch's seeding functions to respect `UseGenerator` blocks; once per process.

    In such a block, they seed the generator of the block, and do not seed GPUs.
    """
    of_torch: Any = torch.random
    of_torch.default_generator = _GeneratorOfThread()
    for module in (torch.cuda, torch.cuda.random):
        for name in _OF_GPUS:
            setattr(module, name, _outside(getattr(torch.cuda.random, name)))


def _outside(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap a function that seeds GPUs, so that it does nothing inside a `UseGenerator` block.

    `torch.manual_seed` calls it; in the block, it would change the numbers that the model draws.
    """

    @functools.wraps(function)
    def called(*args: Any, **named: Any) -> None:
        if not _threads.generators:
            function(*args, **named)

    return called


def _draws_from_default(generator: Any) -> bool:
    """Return whether an operation with this `generator` argument draws from the default generator.

    That is so if the argument is None, or PyTorch's default generator (which `random_split`
    passes).
    """
    # An operation receives a new object for the same generator each time.
    mine: Any = torch.default_generator
    return generator is None or generator._cdata == mine._cdata  # noqa: SLF001 - no public name


def _is_on_cpu(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    devices = [value.device for value in args if isinstance(value, torch.Tensor)]
    if named.get("device") is not None:
        devices.append(torch.device(named["device"]))
    return all(device.type == "cpu" for device in devices)


def generator_from(seed: int) -> torch.Generator:
    """Return a new generator with the given seed, for a `UseGenerator` block."""
    generator = torch.Generator()
    generator.manual_seed(seed % 2**63)
    return generator


def random_state() -> Any:
    """Return the state of PyTorch's default random number generators; see `set_random_state`.

    There is one for the CPU, and one for each GPU if GPUs are in use.
    """
    has_gpus = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if has_gpus else None


def set_random_state(state: Any) -> None:
    """Restore the state that `random_state` returned.

    If `state` is None, seed randomly, as at the start of a process.
    """
    if state is None:
        torch.seed()
        return
    generator, gpus = state
    torch.set_rng_state(generator)
    if gpus is not None:
        torch.cuda.set_rng_state_all(gpus)
    elif torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        # CUDA starts with the last seed of `torch.manual_seed`.
        torch.cuda.manual_seed_all(torch.initial_seed())
