"""Compares the outputs of an exported program with those of the model it was exported from.

torch.export runs `forward` once and records its operations, so a program differs from its model
where PyTorch computes something else while it records. The known case is nn.TransformerEncoder: in
evaluation it packs padded sequences into a nested tensor and fills padded positions with 0, but not
while it is exported. Only an example with padding shows that, so the check makes one.

Callers: `export.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elasticdl.data.batch import leaves, map_arrays
from elasticdl.training.torch.buffers import Buffers
from elasticdl.training.torch.outputs import as_plain_containers, named_leaves

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasticdl.training.torch.inputs import Arguments

# Relative to the largest output, because the program may order operations differently.
_TOLERANCE = 1e-3
# Of models that compute in half precision: operations that the program joins, or takes apart, round
# their intermediate results at other places.
_TOLERANCES = {torch.bfloat16: 0.05, torch.float16: 0.01}
_SMALLEST = 1e-6
_MASK_POSITION = 2
_TWO_AXES = 2


def difference_found(
    model: nn.Module, served: Callable[..., Any], arguments: Arguments
) -> str | None:
    """Compare an exported program with its model, on examples with and without padding.

    A model that draws random numbers in evaluation is not compared.

    Args:
        model: The module, on the CPU, in evaluation mode; it is not changed.
        served: The exported program, as a function of the same arguments.
        arguments: Some examples, as `forward` takes them.

    Returns:
        A description of the first difference and its cause, for a warning; None if there is none.
    """
    tolerance = _tolerance_of(model)

    def are_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
        difference, largest = _largest(found, expected)
        return difference <= tolerance * largest + _SMALLEST

    with torch.no_grad(), torch.random.fork_rng([]), Buffers(model).restored():
        for given in itertools.chain([arguments], _with_padding(model, arguments)):
            args, kwargs = given
            expected = _tensors(model(*args, **kwargs))
            found = _tensors(served(*args, **kwargs))
            if are_close(found, expected) or not are_close(
                _tensors(model(*args, **kwargs)), expected
            ):
                continue
            difference, largest = _largest(found, expected)
            padded = "" if given is arguments else ", with the last position of one of them padded"
            with _slow_path():
                is_fast_path = are_close(found, _tensors(model(*args, **kwargs)))
            names = _padded_encoders(model, given) if is_fast_path else []
            return (
                f"on two examples{padded}, the largest difference is {difference:.3g}, where "
                f"outputs are up to {largest:.3g}. {_cause(names)}"
            )
    return None


def _cause(names: Sequence[str]) -> str:
    if not names:
        return (
            "forward() computes something else while it is exported. Compare the predictions of "
            "both before you serve it."
        )
    return (
        f"In evaluation, nn.TransformerEncoder ({', '.join(names)}) sets the padded positions to "
        "0; in training and in the exported program it does not. Create it with "
        "enable_nested_tensor=False, or mask the padded positions after it."
    )


def _with_padding(model: nn.Module, arguments: Arguments) -> Iterator[Arguments]:
    """Yield, at most once, the arguments with one position marked as padding.

    Nothing is yielded unless a TransformerEncoder receives a padding mask, and no mask marks a
    position yet. Which features mark padding, and by which value, is unknown. So usual values are
    tried at the last position of the first example, until a mask marks it.
    """
    masks = _masks(model, arguments)
    if not masks or any(map(_has_padding, masks.values())):
        return
    indices = {m.padding_idx for m in model.modules() if isinstance(m, nn.Embedding)}
    values = dict.fromkeys((0, 1, *(index for index in indices if index is not None)))
    numbers = range(len(leaves(arguments)))
    for changed in (*([number] for number in numbers), numbers):
        for value in values:
            padded = _padded(arguments, changed, value)
            # A model may not accept the made example.
            with suppress(Exception):
                if any(map(_has_padding, _masks(model, padded).values())):
                    yield padded
                    return


def _padded(arguments: Arguments, changed: Sequence[int], value: int) -> Arguments:
    """Return the arguments with the last position of the first example marked as padding.

    Ids and masks [examples, positions] are set to `value` there; lengths [examples] are reduced by
    one. Other tensors are not changed.

    Args:
        arguments: The arguments.
        changed: Indices of the tensors that may be changed, in the order of `leaves(arguments)`.
        value: The value that may mark padding.
    """
    numbers = iter(range(len(leaves(arguments))))

    def one(tensor: torch.Tensor) -> torch.Tensor:
        is_mask = bool(((tensor == 0) | (tensor == 1)).all())
        is_float = tensor.is_floating_point() or tensor.is_complex()
        if next(numbers) not in changed or not tensor.ndim or (is_float and not is_mask):
            return tensor
        tensor = tensor.clone()
        if tensor.ndim >= _TWO_AXES:
            tensor[0, -1] = value
        elif not is_mask:
            tensor[0] -= 1
        return tensor

    args, kwargs = map_arrays(one, arguments)
    return args, kwargs


def _padded_encoders(model: nn.Module, arguments: Arguments) -> list[str]:
    masks = _masks(model, arguments)
    return [name or type(model).__name__ for name, mask in masks.items() if _has_padding(mask)]


def _masks(model: nn.Module, arguments: Arguments) -> dict[str, torch.Tensor]:
    """Run the model; return name -> padding mask of each TransformerEncoder that received one."""
    found: dict[str, torch.Tensor] = {}

    def reading(name: str) -> Callable[..., None]:
        def read(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            positional = args[_MASK_POSITION] if len(args) > _MASK_POSITION else None
            mask = kwargs.get("src_key_padding_mask", positional)
            if mask is not None:
                found[name] = mask

        return read

    hooks = [
        module.register_forward_pre_hook(reading(name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, nn.TransformerEncoder)
    ]
    try:
        if hooks:
            args, kwargs = arguments
            model(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _has_padding(mask: torch.Tensor) -> bool:
    # A mask of floats is added to the scores: 0 is not padded.
    return bool((mask != 0).any())


@contextmanager
def _slow_path() -> Iterator[None]:
    """Context manager that turns off nn.TransformerEncoder's fast path, as torch.export does."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(value=False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _tensors(outputs: Any) -> dict[str, torch.Tensor]:
    plain = as_plain_containers(outputs)
    return {
        name: value.to(torch.complex128 if value.is_complex() else torch.float64)
        for name, value in named_leaves(plain)
        if isinstance(value, torch.Tensor)
    }


def _tolerance_of(model: nn.Module) -> float:
    """Return how much outputs may differ by rounding alone, relative to the largest output."""
    types = {tensor.dtype for tensor in (*model.parameters(), *model.buffers())}
    return max((_TOLERANCES.get(each, _TOLERANCE) for each in types), default=_TOLERANCE)


def _largest(
    found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]
) -> tuple[float, float]:
    """Find the output that differs most, relative to its largest expected value.

    Args:
        found: The exported program's outputs, by name.
        expected: The model's outputs, by the same names.

    Returns:
        The largest difference in that output, and its largest finite expected value.
    """
    pairs = [(0.0, 0.0)]
    for name, other in expected.items():
        one = found[name]
        is_equal = (one == other) | (one.isnan() & other.isnan())
        apart = (one - other).abs().masked_fill(is_equal, 0.0).nan_to_num(nan=torch.inf)
        sizes = other.abs()[other.isfinite()]
        pairs.append((float(apart.max()), float(sizes.max()) if sizes.numel() else 0.0))
    return max(pairs, key=lambda pair: pair[0] / (pair[1] + _SMALLEST))
