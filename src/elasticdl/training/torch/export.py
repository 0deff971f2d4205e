"""Exports a trained module for serving, so that it can be called without the user's code."""

from __future__ import annotations

import contextlib
import copy
import inspect
import io
import logging
import os
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elasticdl import tracebacks
from elasticdl.data.batch import Arrays, map_arrays
from elasticdl.training.torch.export_check import difference_found

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from elasticdl.training.torch.inputs import Arguments

_log = logging.getLogger("elasticdl")
_FILE = "model.pt2"
_MAX_SHOWN = 200
_OF_RNNS = "torch/nn/modules/rnn.py"


def export(
    model: nn.Module, arguments: Arguments | None, folder: Path, *, is_compared: bool = True
) -> list[str]:
    """Write `model.pt2`, a program of torch.export that needs no user code.

    The program runs on the CPU, in evaluation mode, and takes any number of examples.

    Args:
        model: The module; it is not changed.
        arguments: Two examples, as `forward` takes them, because a size of one would be treated
            as a constant. None if the module has no `forward`.
        folder: An existing folder.
        is_compared: Whether to compare the program's outputs with the model's, and to warn if they
            differ. Use False for mixed precision: the model's outputs then differ anyway.

    Returns:
        Names of the files written. A module that PyTorch cannot export still trains and predicts:
        the reason is logged and the name omitted.
    """
    if arguments is None:
        _log.warning(
            "The model has no forward(), so it is not exported for serving. Training is not "
            "affected; prediction requires a predict_step() or a forward()."
        )
        return []
    try:
        with _quiet(), torch.no_grad():
            on_cpu = _uncompiled(copy.deepcopy(model)).cpu().eval()
            args, kwargs = map_arrays(lambda tensor: tensor.cpu(), arguments)
            batch = torch.export.Dim("batch")

            def open_axis(tensor: torch.Tensor) -> dict[int, Any]:
                del tensor
                return {0: batch}

            shapes: Arrays = map_arrays(open_axis, kwargs or args)
            if not kwargs:
                shapes = _nested(on_cpu.forward, shapes)
            program = torch.export.export(on_cpu, args, kwargs, dynamic_shapes=shapes)
            # The examples are the user's data and must not be exported.
            program.example_inputs = None
            torch.export.save(program, folder / _FILE)
    except Exception as error:  # noqa: BLE001 - whatever a user's forward cannot do in a graph
        (folder / _FILE).unlink(missing_ok=True)
        _log.warning(
            "The model cannot be exported for serving: %s Training and prediction are not "
            "affected, but serving the model requires its code.",
            _reason(error),
        )
        return []
    if is_compared:
        difference = None
        # The file is written. A check that fails says nothing about it.
        with contextlib.suppress(Exception), _quiet():
            difference = difference_found(on_cpu, program.module(), (args, kwargs))
        if difference is not None:
            _log.warning(
                "%s gives other outputs than the model: %s Predictions are not affected: they are "
                "made with the model.",
                _FILE,
                difference,
            )
    return [_FILE]


def _uncompiled(model: nn.Module) -> nn.Module:
    """Return the module within the one that `torch.compile(module)` returns; others as they are.

    Its `forward(*args, **kwargs)` would hide the names of the arguments from torch.export.
    """
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def _nested(forward: Callable[..., Any], shapes: Sequence[Any]) -> Sequence[Any]:
    """Return the shapes of positional arguments with those of `*args` in a tuple, as for export.

    torch.export omits the tuple if no argument is left for `*args`.
    """
    kinds = [parameter.kind for parameter in inspect.signature(forward).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        return shapes
    first = kinds.index(inspect.Parameter.VAR_POSITIONAL)
    return (*shapes[:first], tuple(shapes[first:])) if len(shapes) > first else shapes


def _reason(error: Exception) -> str:
    """Return why torch.export failed, with the user's line if it is known."""
    text, decides = str(error), type(error).__name__ == "GuardOnDataDependentSymNode"
    in_rnn = any(file.endswith(_OF_RNNS) for file in tracebacks.files_of(error))
    if in_rnn and (decides or "FakeTensor" in text):
        reason = (
            "sequences packed by pack_padded_sequence() cannot be exported. Pad them instead: the "
            "last output of each is outputs[torch.arange(outputs.shape[0]), lengths - 1]."
        )
    elif decides:
        reason = (
            "forward() depends on the value of a tensor, as in `if x.sum() > 0`. Use torch.where() "
            "or torch.cond()."
        )
    elif "Constraints violated" in text:
        reason = (
            "the exported forward() works for one number of examples only. It may call "
            "len(tensor), which is a fixed number there (use tensor.shape[0]), loop over the "
            "examples, reshape to a fixed number of them, contain TorchScript, or call "
            "torch.cdist() or an einsum of more than two tensors, which torch.export fixes to "
            "that number."
        )
    else:
        reason = f"torch.export raised {type(error).__name__}: {textwrap.shorten(text, _MAX_SHOWN)}"
        reason = reason.rstrip(".") + "."
    at = tracebacks.raised_at(error, "")
    return f"{at}: {reason}" if at else reason


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context manager that suppresses torch.export's messages for its own developers.

    Its exception states why an export failed. If TORCH_LOGS is set, the user wants these messages,
    so nothing is suppressed.
    """
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    handlers = {
        handler
        for name, logger in list(logging.Logger.manager.loggerDict.items())
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger)
        for handler in logger.handlers
    }
    for handler in handlers:
        handler.addFilter(_nothing)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    del record
    return False
