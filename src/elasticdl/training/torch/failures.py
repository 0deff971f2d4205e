"""What PyTorch raises in a step, as an error in the user's words.

    a label or an id that is out of range   DataError       the label, the outputs, the records
    anything else of the user's             UserCodeError   their line

Callers: `trainer.py`, after a failure.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import nn

from elasticdl.errors import DataError, raised_at
from elasticdl.training.mistakes import id_mistake, label_mistake, num_scores

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.definition import ModelDefinition

# On a GPU the one says no more than the other.
_LABEL = re.compile(r"Target -?\d+ is out of bounds|device-side assert")
_ID = re.compile(r"index out of range in self|device-side assert")


class _FoundError(Exception):
    """Ends a run of the model where an id has no row."""

    def __init__(self, name: str, num_rows: int) -> None:
        super().__init__(name)
        self.name, self.num_rows = name, num_rows


def out_of_range(
    error: Exception,
    model: nn.Module,
    run: Callable[[], object],
    *,
    shape: torch.Size | None,
    batch: Batch,
    definition: ModelDefinition,
) -> DataError | None:
    """Return the error for a label or an id that is out of range; None if it is another mistake.

    Args:
        error: What PyTorch raised.
        model: What is trained.
        run: Runs it on the batch again and returns its outputs, leaving no trace.
        shape: Of its outputs for another batch: after an error on a GPU nothing runs there.
        batch: What was being computed.
        definition: Whose model it is.
    """
    text = str(error)
    if _LABEL.search(text):
        with contextlib.suppress(Exception):
            outputs = run()
            shape = outputs.shape if isinstance(outputs, torch.Tensor) else None
        stop = 0 if shape is None else num_scores(shape, batch.labels)
        mistake = None
        if stop:
            mistake = label_mistake([batch], stop, raised_at(error, definition.where("loss")))
        if mistake is not None:
            return mistake
    if _ID.search(text):
        found = _row_missing(model, run)
        if found is not None:
            at, layer = raised_at(error, definition.where("model")), f"the embedding {found.name!r}"
            return id_mistake([batch], found.num_rows, at, layer)
    return None


def _row_missing(model: nn.Module, run: Callable[[], object]) -> _FoundError | None:
    """Run the model again, looking at what its embeddings are asked for."""

    def looking(name: str, num_rows: int) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def look(_: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
            if given and bool(((given[0] < 0) | (given[0] >= num_rows)).any()):
                raise _FoundError(name, num_rows)

        return look

    hooks = [
        module.register_forward_pre_hook(looking(name, module.num_embeddings))
        for name, module in model.named_modules()
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
    ]
    try:
        run()
    except _FoundError as found:
        return found
    except Exception:  # noqa: BLE001 - what it raised is known
        return None
    finally:
        for hook in hooks:
            hook.remove()
    return None
