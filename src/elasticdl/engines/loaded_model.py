"""Attributes that `elasticdl.load` adds to a model: `predict` for tables, and its class names.

    model.predict(frame)     the outputs for the rows, read through the model's input function
    model.classes            ("cat", "dog"); None if the class names are unknown

For other arguments, `predict` of a Keras model is Keras' own. A PyTorch module has no `predict`, so
the added one takes all data in memory that `elasticdl.predict` takes. A copy of the model, or one
that was saved and loaded again, has no link to the trained model; its `predict` raises an error.

Callers: `load.py`.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl import scratch
from elasticdl.data.batch import leaves, rebuilt
from elasticdl.data.in_memory import arrow_rows, has_columns, named_in_errors, store
from elasticdl.data.memory_elements import is_array
from elasticdl.data.wording import listed
from elasticdl.engines.inference import OpenedModel, check_class_numbers, drain
from elasticdl.engines.record_data import open_records
from elasticdl.engines.stored_data import file_names
from elasticdl.engines.trained_shapes import explained_shapes
from elasticdl.errors import UsageError, ends_at_caller
from elasticdl.prediction.rows import named_outputs, outputs_without_axes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasticdl.artifacts.trained_model import TrainedModel
    from elasticdl.data.batch import Batch
    from elasticdl.training.trainer import Trainer

_log = logging.getLogger("elasticdl")

# The same as for `elasticdl predict`, so that the outputs are bitwise equal.
_MINIBATCH_SIZE = 256
# Arguments of Keras' predict that do not change its result.
_WITHOUT_EFFECT = {"batch_size", "verbose"}


def with_additions(opened: OpenedModel, trainer: Any, example: Batch) -> Any:
    """Add `classes` and `predict` to a trainer's model and return it.

    The model's own attribute `classes` is kept.

    Args:
        opened: The trained model.
        trainer: The trainer with its weights.
        example: The batch that the model was built on.
    """
    model = trainer.model
    add_classes(model, opened.trained)
    own = getattr(model, "predict", None)
    if own is None or opened.definition.framework == "keras":
        # A model that forbids new attributes still works without it.
        with contextlib.suppress(AttributeError, TypeError):
            model.predict = TablePredictor(opened, trainer, example, own)
            if own is not None and hasattr(model, "evaluate"):
                model.evaluate = ArrayEvaluator(opened.job.trained_model, model.evaluate)
    return model


def add_classes(model: Any, trained: TrainedModel) -> None:
    """Set a model's attribute `classes`, unless it has one: None if the classes are unknown.

    They are the values of `default_classes`, which may be numbers or booleans, or else names.

    Args:
        model: The Keras or PyTorch model.
        trained: The trained model that it was loaded from.
    """
    if not hasattr(model, "classes"):
        # A model that forbids new attributes still works without it.
        with contextlib.suppress(AttributeError, TypeError):
            model.classes = _classes_of(model, trained.description.classes) or None


def _classes_of(model: Any, names: Sequence[str]) -> tuple[str | float | bool, ...]:
    """Return the classes: the label's own values where the model has them, otherwise names."""
    values = getattr(model, "default_classes", None)
    # The user's function: what it raises was an error when the model was trained.
    with contextlib.suppress(Exception):
        values = values() if callable(values) else values
        if [str(value) for value in values or ()] == list(names):
            return tuple(values or ())
    return tuple(names)


class ArrayEvaluator:
    """The method `evaluate` of a loaded Keras model: Keras' own, with advice for a table.

    Args:
        trained_model: Folder of the trained model, for the error.
        own: The model's own method.
    """

    def __init__(self, trained_model: str | None, own: Callable[..., Any]) -> None:
        self._trained_model, self._own = trained_model, own

    @ends_at_caller
    def __call__(self, x: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Return what the model's own `evaluate` returns.

        Raises:
            UsageError: Keras cannot take x, a table such as a DataFrame, or the name of a file.
        """
        try:
            return self._own(_text_as_objects(x), *args, **kwargs)
        except Exception as error:
            if not _is_table(x):
                raise
            raise UsageError(
                "evaluate() of a loaded model is that of Keras, which takes arrays. To evaluate "
                "the model on a table or a file: elasticdl.evaluate("
                f"trained_model={self._trained_model!r}, data=...)."
            ) from error


def _text_as_objects(x: Any) -> Any:
    """Return x with its arrays of text in the only dtype in which Keras takes them.

    A list or tuple without arrays is returned unchanged, and so are bytes that are not UTF-8.
    """
    if isinstance(x, np.ndarray):
        text = x
        # Keras refuses an array of objects that are byte strings.
        if x.dtype.kind == "S":
            with contextlib.suppress(UnicodeDecodeError):
                text = np.char.decode(x, "utf-8")
        return text.astype(object) if text.dtype.kind in "UT" else text
    if isinstance(x, Mapping):
        return {name: _text_as_objects(value) for name, value in x.items()}
    if isinstance(x, (list, tuple)) and any(isinstance(each, np.ndarray) for each in leaves(x)):
        return rebuilt(x, [_text_as_objects(each) for each in x])
    return x


def _is_table(x: Any) -> bool:
    are_dicts = isinstance(x, list) and bool(x) and isinstance(x[0], Mapping)
    try:
        return are_dicts or isinstance(x, (str, Path)) or has_columns(x)
    except UsageError:
        # A Series of a DataFrame.
        return True


class TablePredictor:
    """The method `predict` of a loaded model: accepts tables, like a DataFrame.

    Anything else is passed to the model's own `predict`.

    Args:
        opened: The trained model.
        trainer: The trainer with its weights.
        example: The batch that the model was built on.
        other: The model's own method `predict`, called with anything but a table; None if it has
            none.
    """

    def __init__(
        self,
        opened: OpenedModel,
        trainer: Trainer,
        example: Batch,
        other: Callable[..., Any] | None,
    ) -> None:
        self._opened, self._trainer, self._other = opened, trainer, other
        self._shapes = _shapes(example)
        features = example.features
        self._names = frozenset(features) if isinstance(features, Mapping) else frozenset()

    @ends_at_caller
    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the model's outputs for the rows of a table, in their order.

        Args:
            x: A table: a DataFrame, another object with columns (see `data/in_memory.py`), a list
                of dicts, or names of data files. It has the columns that the model was trained on;
                a label may be missing. Anything else, such as an array, is passed to the model's
                own `predict`, if it has one.
            args: Further arguments of the model's own `predict`; not allowed with a table.
            kwargs: Keyword arguments of the model's own `predict`. With a table, only `batch_size`
                and `verbose` are allowed, and have no effect.

        Raises:
            ElasticDLError: The rows do not match those that the model was trained on.
        """
        if self._other is not None and not self._are_rows(x):
            if isinstance(x, np.ndarray) and len(self._names) > 1:
                raise _by_name(x)
            return self._other(self._as_in_training(_text_as_objects(x)), *args, **kwargs)
        others = kwargs.keys() - _WITHOUT_EFFECT
        if args or others:
            raise UsageError(
                f"predict() of a table takes no argument after the table; got "
                f"{listed([*args, *sorted(others)])}."
            )
        if not has_columns(x) and is_array(x):
            # It would be stored as a column `x`.
            names = self._opened.field_names()
            if names and "x" not in names:
                raise _by_name(x)
        if (files := file_names(x)) is not None:
            return self._outputs(files)
        with tempfile.TemporaryDirectory(dir=scratch.folder(), prefix="data-") as folder:
            uri, *_ = store(arrow_rows(x), folder, Path(folder), lambda _: None)
            with named_in_errors({uri: "data"}):
                return self._outputs(uri)

    def _as_in_training(self, x: Any) -> Any:
        """Return an array of one number per example as [n, 1] if the model was trained on that.

        A model file without an input function is given such arrays in this shape.
        """
        is_column = not self._names and self._shapes[1] == [(1,)]
        return x[:, None] if is_column and is_array(x) and x.ndim == 1 else x

    def _are_rows(self, x: Any) -> bool:
        """Return whether x is a table of records, rather than input arrays of the model."""
        if isinstance(x, Mapping):
            return not self._names or not self._names <= x.keys()
        if isinstance(x, list) and x and isinstance(x[0], Mapping):
            return True
        return has_columns(x) or file_names(x) is not None

    def _outputs(self, uri: str) -> Any:
        opened = self._opened
        source = open_records(opened.definition, uri, None)
        check_class_numbers(opened.trained, opened.definition, source, opened.mode)
        training = replace(opened.job.training, minibatch_size=_MINIBATCH_SIZE)
        job = replace(opened.job, data="data", training=training)
        rows = OpenedModel(job, opened.trained, opened.definition, source, opened.mode)
        with rows.feed() as feed, explained_shapes(rows):
            first = feed.peek()
            if first is None:
                raise rows.no_example()
            rows.check_names()
            if _shapes(first[1]) != self._shapes:
                # A layer may accept fewer inputs than it was built for. As `elasticdl predict`
                # does, the model is built on these inputs, to see if its weights fit.
                rows.restored_trainer(first[1])
            made = [self._trainer.predict(b.features) for _, b in drain(feed)]
            if left_out := outputs_without_axes(made[0]):
                _log.warning(
                    "predict() returns None for the model's output %s, which is one number for a "
                    "whole batch.",
                    listed(left_out),
                )
            elif any(np.ndim(output) == 0 for output in leaves(made[0])):
                # It raises an error that names the output.
                named_outputs(made[0], first[1].num_examples)
            return _joined(made)

    def __reduce__(self) -> tuple[type[UnlinkedPredictor], tuple[()]]:
        """Replace this object by an `UnlinkedPredictor` when the model is pickled or copied."""
        return UnlinkedPredictor, ()


class UnlinkedPredictor:
    """The method `predict` of a copy of a loaded model: only raises an error."""

    @ends_at_caller
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise a UsageError, because a copy has no link to the trained model."""
        del args, kwargs
        raise UsageError(
            "This model is a copy of one that elasticdl.load returned, and predict() belongs to "
            "that one. Call the model itself, or load it again."
        )


def _by_name(x: Any) -> UsageError:
    return UsageError(
        f"predict() got an array of shape {tuple(x.shape)}, and the model expects columns by name. "
        "Give a DataFrame with the columns that it was trained on."
    )


def _shapes(batch: Batch) -> tuple[list[str], list[tuple[int, ...]]]:
    """Return the sorted names of a batch's features, if they are a dict, and their shapes."""
    features = batch.features
    names = sorted(features) if isinstance(features, Mapping) else []
    return names, [np.shape(array)[1:] for array in leaves(features)]


def _joined(made: list[Any]) -> Any:
    """Concatenate the outputs of several batches, array by array.

    Args:
        made: The outputs of each batch: an array, or a nested structure of arrays.

    Returns:
        The same structure, with the rows of all batches in each array. An output that is one number
        per batch, so that it has no rows, becomes None.
    """
    if isinstance(made[0], dict):
        return {name: _joined([each[name] for each in made]) for name in made[0]}
    if isinstance(made[0], (list, tuple)):
        return [_joined(list(each)) for each in zip(*made, strict=True)]
    return np.concatenate(made) if np.ndim(made[0]) else None
