"""Random numbers of PyTorch in users' input functions, drawn from a separate generator.

A process has one generator behind `torch.rand` and similar operations, and the model draws from it
in another thread. So in the thread that prepares batches, and only there, operations that draw use
a separate generator. (An operation on an accelerator, and one that accepts no generator, draws as
usual.)

Callers: `engines/randomness.py`, where PyTorch is loaded anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class UseGenerator(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager in which PyTorch operations of this thread draw from a given generator.

    Args:
        generator: The generator.
    """

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._generator = generator

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call a PyTorch operation; PyTorch calls this for every operation inside of the block.

        An operation that would draw from the generator of the process gets that of this object.
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
            is_given = names.index("generator") < len(args) or not _is_the_process(
                named.get("generator")
            )
            return func, named if is_given else {**named, "generator": self._generator}
        # torch.rand and similar operations have another overload for it.
        overload = func._overloadname  # noqa: SLF001 - no public name
        other = "generator" if overload == "default" else f"{overload}_generator"
        if other not in func.overloadpacket.overloads():
            return func, named
        return getattr(func.overloadpacket, other), {**named, "generator": self._generator}


def _is_the_process(generator: Any) -> bool:
    """Return whether a generator argument means the generator that the process shares.

    That is so if it is None, or PyTorch's default generator (which `random_split` passes).
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
    """Return a new generator with the given seed."""
    generator = torch.Generator()
    generator.manual_seed(seed % 2**63)
    return generator
