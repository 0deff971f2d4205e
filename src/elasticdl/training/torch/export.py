"""What serving needs of a trained module."""

from __future__ import annotations

import copy
import logging
import textwrap
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from elasticdl.data.batch import Arrays, map_arrays

if TYPE_CHECKING:
    from elasticdl.training.torch.inputs import Arguments

_log = logging.getLogger("elasticdl")
_FILE = "model.pt2"
_MOST_SHOWN = 200


def export(model: nn.Module, arguments: Arguments | None, folder: Path) -> list[str]:
    """Write `model.pt2`, a program of torch.export that needs no code of the user's.

    It is for the CPU, in evaluation mode, and takes any number of examples.

    Args:
        model: The module; it stays as it is.
        arguments: Two examples, as `forward` takes them. One would be taken for a constant.
            None if the module has no `forward`.
        folder: An existing folder.

    Returns:
        The names that were written. A module that PyTorch cannot export trains and predicts all
        the same: the reason is logged and the name left out.
    """
    if arguments is None:
        _log.warning(
            "The model has no forward(), so it is not exported for serving. It trains and predicts "
            "all the same; what serves it needs its code."
        )
        return []
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # What torch.export warns of concerns its own future.
            warnings.simplefilter("ignore")
            on_cpu = copy.deepcopy(model).cpu().eval()
            args, kwargs = map_arrays(lambda tensor: tensor.cpu(), arguments)
            batch = torch.export.Dim("batch")

            def open_axis(tensor: torch.Tensor) -> dict[int, Any]:
                del tensor
                return {0: batch}

            shapes: Arrays = map_arrays(open_axis, kwargs or args)
            program = torch.export.export(on_cpu, args, kwargs, dynamic_shapes=shapes)
            # The examples are the user's data: they stay here.
            program.example_inputs = None
            torch.export.save(program, folder / _FILE)
    except Exception as error:  # noqa: BLE001 - whatever a user's forward cannot do in a graph
        (folder / _FILE).unlink(missing_ok=True)
        _log.warning(
            "The model cannot be exported for serving (torch.export: %s: %s). It trains and "
            "predicts all the same; what serves it needs its code.",
            type(error).__name__,
            textwrap.shorten(str(error), _MOST_SHOWN),
        )
        return []
    return [_FILE]
