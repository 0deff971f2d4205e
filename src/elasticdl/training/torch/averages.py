"""Maintains averages of a model's weights, EMA or SWA, with `torch.optim.swa_utils`.

`averaged_model(model)` returns an `AveragedModel`, which follows the weights after each update. The
averages are evaluated and published; training continues with the weights themselves. BatchNorm
statistics are those of the model unless `use_buffers=True`: they are not recomputed (`update_bn`
would read the data again).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from elasticdl.errors import DefinitionError, UserCodeError, raised_at, users_traceback
from elasticdl.training.torch.tensors import assign_array, to_array
from elasticdl.training.torch.untracked_state import attribute_digests

if TYPE_CHECKING:
    import numpy as np

    from elasticdl.definition import ModelDefinition


class Averages:
    """Maintains the averages of a model's weights, and puts them into the model for an evaluation.

    If the model file defines no averages, `update`, `in_place` and `finish` do nothing.

    Args:
        definition: The model definition, whose `create_average` creates the averages, if it has
            one.
        model: The model to average, before its first update.

    Raises:
        DefinitionError: The created object is not an average of the weights of `model`.
        UserCodeError: The user's function raised.
    """

    def __init__(self, definition: ModelDefinition, model: nn.Module) -> None:
        self._model, self._where = model, definition.where("averaged_model")
        self._averaged: AveragedModel | None = None
        self._is_in_place = False
        self._num_updates = 0
        if definition.create_average is not None:
            self._averaged = self._checked(definition.create_average(model))

    def __bool__(self) -> bool:
        """Return whether the model file defines averages of the weights."""
        return self._averaged is not None

    @property
    def module(self) -> nn.Module | None:
        """The averaged model; None if the model file defines no averages."""
        return self._averaged

    def update(self) -> None:
        """Update the averages from the weights; called after each update of the weights.

        Raises:
            DefinitionError: The `AveragedModel` keeps state outside its buffers; checked at the
                updates 1, 2, 4, 8 and so on.
            UserCodeError: The user's class or function raised.
        """
        if self._averaged is None:
            return
        self._num_updates += 1
        is_checked = self._num_updates & (self._num_updates - 1) == 0
        before = self._attributes() if is_checked else {}
        try:
            self._averaged.update_parameters(self._model)
        except Exception as error:
            raise UserCodeError(
                f"{raised_at(error, self._where)}: averaging the weights raised:\n"
                f"{users_traceback(error)}"
            ) from error
        after = self._attributes() if is_checked else {}
        if changed := [name for name in after if after[name] != before.get(name)]:
            raise DefinitionError(
                f"{self._where}: averaged_model(): the attribute {changed[0]} of the average "
                "changes with an update, but no checkpoint stores it, so a resumed training would "
                "continue differently. Keep it in a buffer: "
                "self.register_buffer(name, torch.tensor(value)). The number of averaged updates "
                "is in n_averaged."
            )

    def _attributes(self) -> dict[str, str]:
        assert self._averaged is not None  # noqa: S101 - the caller has looked
        return attribute_digests(self._averaged, self._model.modules())

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context manager in whose block the model has the averages as its weights.

        Before the first update, it does nothing.
        """
        if self._averaged is None or self._is_in_place or not int(self._averaged.n_averaged):
            yield
            return
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def finish(self) -> None:
        """Put the averages into the model permanently, if any update was averaged."""
        if self._averaged is not None and not self._is_in_place and int(self._averaged.n_averaged):
            self._swap()
            self._is_in_place = True

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return the averages and the number of averaged updates; empty without averages."""
        if self._averaged is None:
            return {}
        return {name: to_array(tensor) for name, tensor in _named_tensors(self._averaged).items()}

    def load(self, state: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
        """Restore averages that `state` returned.

        Returns:
            One line per name that exists only in the checkpoint or only in the model file; if there
            are any, nothing is restored.
        """
        tensors = {} if self._averaged is None else _named_tensors(self._averaged)
        problems = [
            f"{name}: in {'the checkpoint' if name in state else 'the model file'} only"
            for name in sorted(tensors.keys() ^ state.keys())
        ]
        if not problems:
            self._is_in_place = False
            with torch.no_grad():
                for name, tensor in tensors.items():
                    assign_array(tensor, state[name])
        return problems

    def _swap(self) -> None:
        assert self._averaged is not None  # noqa: S101 - the callers have looked
        for mine, average in zip(
            _tensors(self._model), _tensors(self._averaged.module), strict=True
        ):
            mine.data, average.data = average.data, mine.data

    def _checked(self, made: Any) -> AveragedModel:
        if not isinstance(made, AveragedModel):
            raise self._error(f"it returned a {type(made).__name__}.")
        if made.module is self._model:
            raise self._error("the averaged model is the model itself.")
        shapes = [[t.shape for t in _tensors(each)] for each in (made.module, self._model)]
        if shapes[0] != shapes[1]:
            raise self._error("the shapes of its weights differ from those of the model.")
        return made.requires_grad_(requires_grad=False)

    def _error(self, problem: str) -> DefinitionError:
        return DefinitionError(
            f"{self._where}: averaged_model(): {problem} Return an average of the argument: "
            "torch.optim.swa_utils.AveragedModel(model, multi_avg_fn="
            "get_ema_multi_avg_fn(0.999))."
        )


def _tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


def _named_tensors(averaged: AveragedModel) -> dict[str, torch.Tensor]:
    """Return the parameters and all buffers of an averaged model by name.

    Updates also change non-persistent buffers. `state_dict()` is not called, because user code may
    override it and omit entries.
    """
    parameters = averaged.named_parameters(remove_duplicate=False)
    return dict(itertools.chain(parameters, averaged.named_buffers(remove_duplicate=False)))
