"""Lets the trainer watch calls of PyTorch's functions without changing how modules compute.

In evaluation, `nn.TransformerEncoder`, its layers and `nn.MultiheadAttention` take a fast path,
which returns zeros for padded positions. They do not take it if
`torch.overrides.has_torch_function` finds that calls are overridden, and it finds every active
function mode (`TorchFunctionMode`). So an ordinary mode that only watches a model's calls would
change the model's outputs.

    class Watch(HiddenMode):
        def __torch_function__(self, func, types, args=(), kwargs=None): ...

While such a mode is active, a replacement of `has_torch_function` looks for other modes and for
tensor subclasses only. The original is put back afterwards, because `torch.jit.script` needs it.

Callers: `losses.py`, `label_shapes.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, Self

from torch import overrides
from torch.overrides import TorchFunctionMode

_of_torch = overrides.has_torch_function
_lock = threading.Lock()
_num_active = 0


class HiddenMode(TorchFunctionMode):
    """A `TorchFunctionMode` that PyTorch's modules do not notice, so they take their fast path."""

    def __enter__(self) -> Self:
        _count(1)
        return super().__enter__()  # type: ignore[no-any-return,no-untyped-call]

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _count(-1)


def _count(change: int) -> None:
    global _num_active  # noqa: PLW0603 - of all threads, which share the modules of torch
    with _lock:
        _num_active += change
        replaced: Any = _without_hidden_mode if _num_active else _of_torch
        overrides.has_torch_function = replaced


def _without_hidden_mode(arguments: Iterable[Any]) -> bool:
    """Return whether anything but a hidden mode overrides calls with these arguments.

    Replaces `has_torch_function` while a hidden mode is active.
    """
    mode = overrides._get_current_function_mode()  # type: ignore[no-untyped-call]  # noqa: SLF001
    if not isinstance(mode, HiddenMode):
        return _of_torch(arguments)
    with overrides._pop_mode_temporarily():  # noqa: SLF001 - there is no public way
        return _of_torch(arguments)
