"""Variables that a step uses and that no checkpoint holds.

A model's weights are what Keras tracks. A `tf.Variable` in a layer, or a variable beside the model
that its loss reads, is used by a compiled step all the same:

    self.steps = tf.Variable(0.0)          in a layer, moved by its `call`
    beta = keras.Variable(0.0)             in the file, moved by a callback, read by the loss

As long as its value stays it is a constant. One that moves would be as new after a resume, and
another one on each worker, so it is refused by name. Variables that a callback has as attributes
are kept with the callback.

Callers: `trainer.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError
from elasticdl.training.keras.draws import handle

if TYPE_CHECKING:
    from elasticdl.definition import Origin


class Outside:
    """The variables outside of a training's state that its compiled functions use.

    Args:
        model: Whose layers are looked through for names.
        known: Returns all variables that are kept, or set anew for each step.
        origin: For errors.
    """

    def __init__(
        self, model: keras.Model, known: Callable[[], Iterable[Any]], origin: Origin
    ) -> None:
        self._model, self._known, self._origin = model, known, origin
        self._found: dict[int, tuple[Any, np.ndarray[Any, Any]]] = {}

    def look_into(self, traced: Any) -> None:
        """Remember the variables of a function that was traced, and what they hold now."""
        for variable in traced.graph.variables:
            if id(variable.handle) not in self._found:
                self._found[id(variable.handle)] = (variable, np.array(variable.numpy()))

    def check_unmoved(self) -> None:
        """Make sure that they hold what they held.

        Raises:
            DefinitionError: One does not.
        """
        if not self._found:
            return
        known = {id(handle(variable)) for variable in self._known()}
        for key in self._found.keys() & known:
            del self._found[key]
        for variable, before in self._found.values():
            if variable.numpy().tobytes() != before.tobytes():
                raise DefinitionError(
                    f"{self._origin}: {self._name_of(variable)} changes in training. It is no "
                    "weight of the model, so no checkpoint holds it: a resumed training would go "
                    "on with another value, and so would each of several workers. Make it a weight "
                    "of a layer (self.add_weight(..., trainable=False)), or, if a callback changes "
                    "it, an attribute of that callback."
                )

    def _name_of(self, variable: Any) -> str:
        for where, owner in self._owners():
            for name, value in list(vars(owner).items()):
                if handle(value) is variable.handle:
                    return f"the variable {where}{name}"
        return f"the variable {variable.name}"

    def _owners(self) -> Iterator[tuple[str, Any]]:
        # Keras has no public name for all layers, those within layers included.
        for layer in self._model._flatten_layers():  # noqa: SLF001
            yield f"{type(layer).__name__}.", layer
        for module in list(sys.modules.values()):
            if getattr(module, "__file__", None) == self._origin.file:
                yield "", module


def variables_in(owner: Any) -> list[Any]:
    """Return the variables that an object has as attributes."""
    return [
        value for value in vars(owner).values() if isinstance(value, (tf.Variable, keras.Variable))
    ]
