"""What a user's model class may replace of Keras' own training, and what it may not.

`Model.fit` calls these methods; steps here are not made by `fit`. `compute_loss` is called, in
training and in evaluation. A method that is never called would leave other numbers than `fit`
without a word, so models that have one are refused before the first step. The property
`trainable_weights` says what is trained, as in `fit`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import keras

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
# Asked by their public names where a model was compiled by the user.
_OF_COMPILED = ("compile", "compute_metrics")
_ADVICE = {
    "compile": "Leave out what it does, or say it in the model file's loss() and optimizer().",
    "compute_metrics": "Return the metrics from the model file's metrics function.",
}
_LIBRARIES = ("keras", "tf_keras")


def check(model: Any, origin: Origin, *, is_compiled: bool) -> None:
    """Make sure that all that a model's class says of its training is heard.

    Args:
        model: A model of the user's.
        origin: For the error.
        is_compiled: Whether it is trained as it was compiled.

    Raises:
        DefinitionError: It replaces a method that would not be called; or it was compiled with a
            loss or metrics, and the model file says by itself how it is trained.
    """
    names = _NOT_CALLED if is_compiled else (*_NOT_CALLED, *_OF_COMPILED)
    # A model that tf_keras loaded is within one of Keras 3.
    for each in (model, getattr(model, "inner", None)):
        for name in names:
            if each is not None and (method := own(each, name)) is not None:
                advice = _ADVICE.get(
                    name,
                    "Put what it computes into compute_loss() or add_loss(), which are.",
                )
                raise DefinitionError(
                    f"{place(method) or origin}: {type(each).__name__} has a {name}() of its own, "
                    f"which would not be called. {advice}"
                )
    if not is_compiled:
        _check_not_compiled(model, origin)


class TrainedWeights:
    """Asks a model for the weights that it trains, as `fit` does.

    Args:
        model: Built. It may override `trainable_weights`, to train a part of its weights.
        origin: For errors.

    Attributes:
        trained: What the property returns.
        others: All other variables of the model, those that the property leaves out included.

    Raises:
        DefinitionError: The property returns something that is not a weight of the model, or a
            weight twice.
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
                "in a layer of the model: no checkpoint would hold another."
            )
        self.others = [each for each in members if id(each) not in trained]

    def check_unchanged(self) -> None:
        """Make sure that the model names the weights that it named when it was made.

        Raises:
            DefinitionError: It names others.
        """
        if not self._is_own:
            return
        now = list(self._model.trainable_weights)
        if [id(each) for each in now] != [id(each) for each in self.trained]:
            raise DefinitionError(
                f"{self._where}: trainable_weights of {type(self._model).__name__} returns "
                f"{len(now)} weights in training and returned {len(self.trained)} others when the "
                "model was made. A compiled step, here and in `fit`, trains those of one moment. "
                "Return the same weights always."
            )


def own(model: Any, name: str) -> Any | None:
    """Return a model's method where it is not Keras' own."""
    if name in vars(model):
        method = vars(model)[name]
        inner = getattr(method, "__func__", method)
        # Keras wraps some of its own in the object.
        return None if _is_of_library(getattr(inner, "__module__", "")) else method
    for kind in type(model).__mro__:
        if name in vars(kind):
            return None if _is_of_library(kind.__module__) else vars(kind)[name]
    return None


def _check_not_compiled(model: Any, origin: Origin) -> None:
    said = [
        name
        for name in ("loss", "_compile_metrics")
        if getattr(model, name, None) is not None and getattr(model, "compiled", False)
    ]
    if said:
        what = " and ".join("metrics" if name == "_compile_metrics" else name for name in said)
        raise DefinitionError(
            f"{origin}: the model {model.name!r} was compiled with its own {what}, and the model "
            "file itself defines how it is trained. Remove the call of compile() and define its "
            "loss, optimizer and metrics in the file. A model that was saved compiled is loaded "
            "without them by keras.saving.load_model(path, compile=False)."
        )


def is_of_keras(loss: Any) -> bool:
    """Whether a loss object or function is Keras' own."""
    kind = loss if inspect.isroutine(loss) else type(loss)
    return _is_of_library(getattr(kind, "__module__", ""))


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in _LIBRARIES


def place(method: Any) -> str | None:
    """Return `file:line` of a method, where it has one."""
    try:
        inner = inspect.unwrap(getattr(method, "__func__", method))
        return f"{inspect.getsourcefile(inner)}:{inspect.getsourcelines(inner)[1]}"
    except (TypeError, OSError):
        return None
