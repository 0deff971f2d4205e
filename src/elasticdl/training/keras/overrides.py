"""Rejects models that override methods of Keras' own training that are not called here.

`Model.fit` calls these methods, but ElasticDL does not train with `fit`. Without an overridden
method the results would silently differ from those of `fit`, so such models are rejected before the
first step. `compute_loss` is called, in training and in evaluation. The property
`trainable_weights` determines the trained weights, as in `fit`.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from elasticdl.definition import Origin

COMPUTE_LOSS = "compute_loss"
_NOT_CALLED = (
    "train_step",
    "test_step",
    "predict_step",
    "fit",
    "evaluate",
    "predict",
    "train_on_batch",
    "test_on_batch",
    "predict_on_batch",
    "make_train_function",
    "make_test_function",
    "make_predict_function",
)
# Called by their public names if the user compiled the model.
_OF_COMPILED = ("compile", "compute_metrics", "get_metrics_result")
_ADVICE = {
    "compile": "Remove it, or do the same in the model file's loss() and optimizer().",
    "compute_metrics": "Return the metrics from the model file's metrics function.",
    "get_metrics_result": "Return the metrics from the model file's metrics function.",
}
_LIBRARIES = ("keras", "tf_keras")
# Modules of Keras with models that train in their own way.
_MODELS_OF_KERAS = {"distillation", "premade_models"}


def check(model: Any, origin: Origin, *, is_compiled: bool) -> None:
    """Reject a model that overrides a method of Keras' training, such as `train_step`.

    ElasticDL does not call these methods, so the results would silently differ from those of `fit`.

    Args:
        model: The user's model.
        origin: Prefix of the error.
        is_compiled: Whether training uses the loss, optimizer and metrics passed to `compile`,
            not those that the model file defines separately.

    Raises:
        DefinitionError: The model overrides a method that would not be called; or it was compiled
            with a loss or metrics, although the model file defines them separately.
    """
    names = _NOT_CALLED if is_compiled else (*_NOT_CALLED, *_OF_COMPILED)
    # A model loaded by tf_keras is wrapped in a Keras 3 model.
    for each in (model, getattr(model, "inner", None)):
        for name in names:
            if each is not None and (method := own(each, name)) is not None:
                advice = _ADVICE.get(
                    name,
                    "Move its computation to compute_loss() or add_loss(), which are called.",
                )
                raise DefinitionError(
                    f"{_place_of(method, each, origin)}: {type(each).__name__} has its own "
                    f"{name}(), which would not be called. {advice}"
                )
    if not is_compiled:
        _check_not_compiled(model, origin)


def check_reset(model: Any, origin: Origin) -> None:
    """Reject a model whose own `reset_metrics` changes more than metrics, by a call of it.

    `fit` calls it for each epoch and evaluation. ElasticDL resets the metrics without it.

    Args:
        model: The user's model, built, with its optimizer.
        origin: Prefix of the error.

    Raises:
        DefinitionError: The method changes weights, variables of the optimizer or numbers in
            attributes of the model.
    """
    method = own(model, "reset_metrics")
    if method is None:
        return
    optimizer = getattr(model, "optimizer", None)
    variables = [*model.variables, *(optimizer.variables if optimizer else ())]
    before = [np.array(each) for each in variables]
    numbers = _numbers_of(model)
    # It may need what training creates.
    with contextlib.suppress(Exception):
        model.reset_metrics()
    moved = [
        each.path
        for each, value in zip(variables, before, strict=True)
        if np.array(each).tobytes() != value.tobytes()
    ]
    moved += [name for name, value in _numbers_of(model).items() if numbers.get(name) != value]
    for each, value in zip(variables, before, strict=True):
        each.assign(value)
    if moved:
        raise DefinitionError(
            f"{_place_of(method, model, origin)}: reset_metrics() of {type(model).__name__} "
            f"changes {', '.join(moved)}, but it would not be called: ElasticDL resets the metrics "
            "itself. Do this in a callback (on_epoch_begin, on_test_begin)."
        )


def _numbers_of(model: Any) -> dict[str, Any]:
    return {name: each for name, each in vars(model).items() if type(each) in {int, float, bool}}


def _place_of(method: Any, model: Any, origin: Origin) -> object:
    """Return the place to name in errors about a method: its `file:line`, or the model's origin."""
    return origin if is_of_keras(model) else place(method) or origin


class TrainedWeights:
    """The weights that a model trains, as `fit` determines them.

    Args:
        model: A built model. It may override `trainable_weights`, to train a part of its weights.
        origin: Prefix for error messages.

    Attributes:
        trained: The weights that `trainable_weights` of the model returns.
        others: All other variables of the model, including weights that are not trained.

    Raises:
        DefinitionError: `trainable_weights` returns something that is not a weight of the model, or
            a weight twice.
    """

    def __init__(self, model: keras.Model, origin: Origin) -> None:
        self._model = model
        self._where = str(origin)
        method = own(model, "trainable_weights")
        self._is_own = method is not None
        if isinstance(method, property):
            self._where = place(method.fget) or self._where
        self.trained: list[Any] = list(model.trainable_weights)
        # Not model.variables, which may be overridden as well.
        members: list[Any] = keras.Model.variables.fget(model)
        known, trained = {id(each) for each in members}, {id(each) for each in self.trained}
        strangers = [each for each in self.trained if id(each) not in known]
        if strangers or len(trained) != len(self.trained):
            what = f"{strangers[0]!r:.80}, not a weight of it" if strangers else "a weight twice"
            raise DefinitionError(
                f"{self._where}: trainable_weights of {type(model).__name__} returns {what}. "
                "Return each weight that is trained once, and make it with self.add_weight() or "
                "in a layer of the model: no checkpoint would store other ones."
            )
        self.others = [each for each in members if id(each) not in trained]

    def check_unchanged(self) -> None:
        """Check that the model's `trainable_weights` still returns the weights in `trained`.

        Raises:
            DefinitionError: It returns different weights.
        """
        if not self._is_own:
            return
        now = list(self._model.trainable_weights)
        if [id(each) for each in now] != [id(each) for each in self.trained]:
            raise DefinitionError(
                f"{self._where}: trainable_weights of {type(self._model).__name__} returns "
                f"{len(now)} weights in training and returned {len(self.trained)} others when the "
                "model was created. A compiled step, here and in `fit`, always trains the same "
                "weights. Return the same weights each time."
            )


def own(model: Any, name: str) -> Any | None:
    """Return a method or property that a user's class or model overrides; None if it is Keras'.

    Args:
        model: The model.
        name: Name of the method or property.
    """
    if name in vars(model):
        method = vars(model)[name]
        inner = getattr(method, "__func__", method)
        # Keras wraps some of its own methods in the object.
        return None if _is_of_library(getattr(inner, "__module__", "")) else method
    for kind in type(model).__mro__:
        if name in vars(kind):
            return None if _is_base(kind) else vars(kind)[name]
    return None


def _check_not_compiled(model: Any, origin: Origin) -> None:
    declared = [
        name
        for name in ("loss", "_compile_metrics")
        if getattr(model, name, None) is not None and getattr(model, "compiled", False)
    ]
    if declared:
        what = " and ".join("metrics" if name == "_compile_metrics" else name for name in declared)
        raise DefinitionError(
            f"{origin}: the model {model.name!r} was compiled with its own {what}, but the model "
            "file itself defines how it is trained. Remove the call of compile() and define its "
            "loss, optimizer and metrics in the file. A model that was saved compiled is loaded "
            "without them by keras.saving.load_model(path, compile=False)."
        )


def is_of_keras(loss: Any) -> bool:
    """Return whether an object or a function is Keras' own."""
    kind = loss if inspect.isroutine(loss) else type(loss)
    return _is_of_library(getattr(kind, "__module__", ""))


def _is_base(kind: type) -> bool:
    """Return whether a class belongs to Keras and trains with the standard `train_step`.

    Returns False for user classes, and for Keras' `distillation` and `premade_models`, which train
    differently.
    """
    return _is_of_library(kind.__module__) and not _MODELS_OF_KERAS & {*kind.__module__.split(".")}


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def place(method: Any) -> str | None:
    """Return `file:line` where a method is defined; None if its source is unknown."""
    try:
        inner = inspect.unwrap(getattr(method, "__func__", method))
        return f"{inspect.getsourcefile(inner)}:{inspect.getsourcelines(inner)[1]}"
    except (TypeError, OSError):
        return None
