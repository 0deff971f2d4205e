"""Detects changes of variables and lookup tables that a step uses but no checkpoint contains.

A model's weights are the variables that Keras tracks. A compiled step can also use a `tf.Variable`
in a layer, or a variable outside the model that its loss reads:

    self.steps = tf.Variable(0.0)          in a layer, changed by its `call`
    beta = keras.Variable(0.0)             in the file, changed by a callback, read by the loss

A variable whose value stays the same is a constant. One that changes would be reset after a resume
and differ on each worker, so it is rejected by name, and so is a mutable table of `tf.lookup`.
Variables that a callback has as attributes are stored with the callback.

Callers: `trainer.py`.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError
from elasticdl.training.keras.random_ops import handle

if TYPE_CHECKING:
    from elasticdl.definition import Origin

_TABLES = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)


class UntrackedVariables:
    """Watches variables that compiled functions use but that are not part of the training state.

    Args:
        model: The model. Its layers are searched to name a variable in an error.
        optimizer: Its optimizer, whose attributes are searched for the same purpose.
        known: Function () -> all variables that are in checkpoints, or set for each step.
        origin: Prefix for error messages.
    """

    def __init__(
        self,
        model: keras.Model,
        optimizer: Any,
        known: Callable[[], Iterable[Any]],
        origin: Origin,
    ) -> None:
        self._model, self._optimizer, self._known, self._origin = model, optimizer, known, origin
        self._found: dict[int, tuple[Any, np.ndarray[Any, Any]]] = {}
        self._tables: dict[int, tuple[Any, tuple[Any, Any]]] = {}

    def record(self, traced: Any) -> None:
        """Record the variables and tables that a traced function uses, for `check_unmoved`.

        Args:
            traced: A concrete function of TensorFlow.
        """
        for variable in traced.graph.variables:
            if id(variable.handle) not in self._found:
                self._found[id(variable.handle)] = (variable, np.array(variable.numpy()))
        for table in _mutable_tables(traced):
            if id(table) not in self._tables:
                self._tables[id(table)] = (table, _content(table))

    def check_unmoved(self) -> None:
        """Check that what no checkpoint has is as it was recorded: variables and lookup tables.

        A resumed training would continue with other values.

        Raises:
            DefinitionError: Such a variable or table has changed.
        """
        self._check_tables()
        if not self._found:
            return
        known = {id(handle(variable)) for variable in self._known()}
        for key in self._found.keys() & known:
            del self._found[key]
        for variable, before in self._found.values():
            if variable.numpy().tobytes() != before.tobytes():
                if self._is_of_optimizer(variable):
                    name = type(self._optimizer).__name__
                    raise DefinitionError(
                        f"{self._origin}: {variable.name} of the optimizer {name} changes in "
                        "training, but is not among its `variables`, so no checkpoint stores it: "
                        "a resumed training would continue with a different value. Create it with "
                        "self.add_variable(...); for the variables of an optimizer within it, "
                        "override the property `variables` to return those too."
                    )
                raise DefinitionError(
                    f"{self._origin}: {self._name_of(variable)} changes in training. It is not a "
                    "weight of the model, so no checkpoint stores it: a resumed training would "
                    "continue with a different value, and so would each worker. Make it a weight "
                    "of a layer (self.add_weight(..., trainable=False)), or, if a callback "
                    "changes it, an attribute of that callback."
                )

    def _check_tables(self) -> None:
        for table, before in self._tables.values():
            if not _has_content(table, before):
                name = self._attribute_with(functools.partial(_is_or_contains, table))
                what = f"lookup table {name}" if name else type(table).__name__
                raise DefinitionError(
                    f"{self._origin}: the {what} changes in training. "
                    "Checkpoints and the trained model do not contain a table: a resumed training "
                    "would continue with the entries that the model file gives it, and each worker "
                    "would have its own. Fill the table in the model file (a vocabulary of the "
                    "data, for example), or keep the numbers in a weight of a layer "
                    "(self.add_weight(..., trainable=False))."
                )

    def _name_of(self, variable: Any) -> str:
        name = self._attribute_with(lambda value: handle(value) is variable.handle)
        return f"the variable {name or variable.name}"

    def _attribute_with(self, is_it: Callable[[Any], bool]) -> str:
        """Return the name of the first attribute or variable whose value meets `is_it`, or ''."""
        return next(
            (
                f"{where}{name}"
                for where, owner in self._owners()
                for name, value in list(vars(owner).items())
                # TensorFlow's own lists of what it tracks have names that begin so.
                if not name.startswith("_self_") and is_it(value)
            ),
            "",
        )

    def _is_of_optimizer(self, variable: Any) -> bool:
        # Keras' own attributes are not searched: their variables are known.
        own = [value for name, value in vars(self._optimizer).items() if not name.startswith("_")]
        return any(handle(each) is variable.handle for value in own for each in _variables(value))

    def _owners(self) -> Iterator[tuple[str, Any]]:
        # Keras has no public name for the list of all layers, including nested ones.
        for layer in self._model._flatten_layers():  # noqa: SLF001
            yield f"{type(layer).__name__}.", layer
        for module in list(sys.modules.values()):
            if getattr(module, "__file__", None) == self._origin.file:
                yield "", module


def _variables(value: Any) -> Iterable[Any]:
    """Return the values in an attribute that may be variables.

    These are the items of a list, tuple or dict; else the value itself and, for an optimizer, its
    `variables`.
    """
    if isinstance(value, Mapping):
        value = list(value.values())
    return value if isinstance(value, (list, tuple)) else [value, *getattr(value, "variables", ())]


def _is_or_contains(wanted: Any, value: Any) -> bool:
    if isinstance(value, Mapping):
        value = list(value.values())
    items = value if isinstance(value, (list, tuple)) else [value]
    return any(each is wanted for each in items)


def _mutable_tables(traced: Any) -> list[Any]:
    """Return the mutable lookup tables that a concrete function of TensorFlow uses."""
    graph = traced.graph
    outer = {id(tensor) for tensor, _ in graph.captures if tensor.dtype == tf.resource}
    outer -= {id(variable.handle) for variable in graph.variables}
    # A graph knows the handle of a table, but neither its types nor its Python object.
    return [
        each
        for each in (gc.get_objects() if outer else ())
        if issubclass(type(each), _TABLES) and id(each.resource_handle) in outer
    ]


def _content(table: Any) -> tuple[Any, Any]:
    keys, values = table.export()
    return keys.numpy(), values.numpy()


def _has_content(table: Any, content: tuple[Any, Any]) -> bool:
    """Return whether a table has the keys and values of a `_content`, in any order."""
    now = _content(table)
    if all(np.array_equal(one, other) for one, other in zip(now, content, strict=True)):
        return True
    pairs = (
        sorted(map(repr, zip(*map(np.ndarray.tolist, each), strict=True)))
        for each in (now, content)
    )
    return next(pairs) == next(pairs)


def variables_in(owner: Any) -> list[Any]:
    """Return the variables that an object has as attributes."""
    return [
        value for value in vars(owner).values() if isinstance(value, (tf.Variable, keras.Variable))
    ]
