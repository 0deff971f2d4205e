"""Optimizer, loss and metrics of Keras 3, from a spec or a saved file.

    "adadelta"                                                            a name
    {"class_name": "Adadelta", "config": {"lr": 1.0, "decay": 0.0}}       as Keras 2.2.4 saved it
    {"value": "Adam", "path": "keras.optimizers", "args": {"lr": 0.1}}    as a config of IBM FL

Each setting in a spec replaces that of the file. Names are looked up in Keras and in the
declared custom objects; a config never makes this module import a module or evaluate code. A
setting of an old config that Keras 3 does not support is an error and never ignored: a silently
different optimizer would go unnoticed.

Callers: dialects.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np

from elasticdl.errors import DefinitionError
from elasticdl.training.range_errors import unclear_crossentropy

_ITEMS = ("optimizer", "loss", "metrics")
# Further keys of a compiled model; accepted only if they change nothing.
_BESIDE = {"loss_weights", "weighted_metrics", "sample_weight_mode"}
# Optimizer keys that affect the speed of the computation, not its result.
_SPEED = {"jit_compile", "is_legacy_optimizer"}
_NADAM_OF_KERAS_2 = 0.004
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_RATES_OF_KERAS_2 = {"Adadelta": 1.0, "Adagrad": 0.01, "Adamax": 0.002, "Nadam": 0.002}
"""Default learning rates of Keras 2.2.4 that differ in Keras 3."""

_HARDLY_LEARNS = 0.01
_ACCURACY = ("accuracy", "acc")
_OLD_NAMES = {
    "kullback_leibler_divergence": "kl_divergence",
    "logcosh": "log_cosh",
    "kld": "kl_divergence",
    "KLD": "kl_divergence",
}

Loss: TypeAlias = Callable[[Any, Any], Any]


@dataclass(frozen=True, eq=False)
class CompileOptions:
    """Training settings of a model: optimizer, loss and metrics.

    Attributes:
        create_optimizer: Function () -> new Keras 3 optimizer.
        loss: Function (outputs, labels) -> one value per example, or their mean.
        create_metrics: Function () -> new metrics by name: Keras 3 metrics, or functions `(labels,
            predictions)` with one value per example.
        description: Optimizer, learning rate and loss, with their sources, for the log.
        own_loss: Name of the loss if the user has written it; empty if it is a loss of Keras.
        hardly_learns: Whether the optimizer is Adadelta with a learning rate that is too small for
            it to change the weights much, as the default of later versions of Keras is.
    """

    create_optimizer: Callable[[], Any]
    loss: Loss
    create_metrics: Callable[[], dict[str, Any]]
    description: str
    own_loss: str = ""
    hardly_learns: bool = False


def resolve(
    options: Mapping[str, Any] | None,
    training_config: Mapping[str, Any] | None = None,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    where: object,
) -> CompileOptions:
    """Return the training settings of a model.

    Args:
        options: The section `compile_model_options` of a spec: `optimizer`, `loss`, `metrics`, each
            in one of the forms in the module docstring.
        training_config: Settings from the model file (`ModelFile.training_config`), used for what
            `options` does not set.
        custom_objects: The user's functions and classes, by name.
        where: Location of the options, for errors.

    Raises:
        DefinitionError: A setting is missing, unknown, or not supported by Keras 3.
    """
    given = _given(options, where)
    saved = _saved(training_config, where)
    objects = custom_objects or {}
    for item in _ITEMS[:2]:
        if given.get(item) is None and saved.get(item) is None:
            raise DefinitionError(
                f"{where}: there is no {item}: the spec does not set one, and the model file "
                f"{_why_none(item, saved)}. Add it: compile_model_options: {{optimizer: adam, "
                "loss: mse}."
            )

    def chosen(item: str) -> tuple[Any, str]:
        if given.get(item) is not None:
            return given[item], "from the spec"
        return saved.get(item), "from the file"

    optimizer, by = chosen("optimizer")
    create_optimizer, description = _optimizer(optimizer, by, objects, where)
    loss, by_loss = chosen("loss")
    function, loss_name = _loss(loss, chosen("loss_weights")[0], objects, where)
    metrics, _ = chosen("metrics")
    items = [each for each in _flat(metrics) if each is not None]
    for each in items:
        # Created once now, so that a mistake is reported before any data is read.
        _metric(each, objects, where)
    # Optimizers as well: a value may be out of range.
    made = create_optimizer()
    return CompileOptions(
        create_optimizer,
        function,
        lambda: dict(_metric(each, objects, where) for each in items),
        f"{description}; loss {loss_name} ({by_loss})",
        loss_name if loss_name in objects else "",
        isinstance(made, keras.optimizers.Adadelta) and _is_slow(made.learning_rate),
    )


def _why_none(item: str, saved: Mapping[str, Any]) -> str:
    there = [each for each in _ITEMS if saved.get(each)]
    if there:
        return f"has {' and '.join(there)} but no {item}"
    return "has none either: it was not compiled, or was saved with include_optimizer=False"


def _is_slow(rate: Any) -> bool:
    """Return whether a learning rate is so small that Adadelta hardly changes the weights."""
    return float(keras.ops.convert_to_numpy(rate)) <= _HARDLY_LEARNS


def _given(options: Mapping[str, Any] | None, where: object) -> dict[str, Any]:
    for key, value in (options or {}).items():
        if key == "loss_weights" or (key in _BESIDE and value is None):
            continue
        if key in _BESIDE:
            raise DefinitionError(
                f"{where}: compile_model_options has {key}, but data from a spec have no sample "
                "weights. List the metrics under `metrics`."
            )
        if key not in _ITEMS:
            near = difflib.get_close_matches(str(key), _ITEMS, n=1)
            meant = f"Did you mean {near[0]}?" if near else f"It takes {', '.join(_ITEMS)}."
            raise DefinitionError(f"{where}: compile_model_options has no {key!r}. {meant}")
    return dict(options or {})


def _saved(training_config: Mapping[str, Any] | None, where: object) -> dict[str, Any]:
    if not training_config:
        return {}
    saved = dict(training_config)
    if "optimizer_config" in saved:
        saved["optimizer"] = saved.pop("optimizer_config")
    for key in ("weighted_metrics", "sample_weight_mode"):
        if any(each is not None for each in _flat(saved.get(key))):
            raise DefinitionError(
                f"{where}: the model file was compiled with {key} {saved[key]!r}, but data from a "
                "spec have no sample weights. Save the model compiled without them."
            )
    return saved


# --- optimizers ----------------------------------------------------------------------------------


def _optimizer(
    declared: Any, by: str, objects: Mapping[str, Any], where: object
) -> tuple[Callable[[], Any], str]:
    name, config, path = _named(declared, "optimizer", where)
    if name in objects and not (path and path.startswith(("keras", "tensorflow", "tf_keras"))):
        return _custom_optimizer(name, objects[name], config, by, where)
    known = _classes(keras.optimizers, keras.optimizers.Optimizer)
    found = _find(name, known, "optimizer", path, where)
    arguments = _optimizer_arguments(found, config, where)

    def create() -> Any:
        try:
            return found(**_made(arguments))
        except (TypeError, ValueError) as error:
            raise DefinitionError(
                f"{where}: the optimizer {name} cannot be created with {arguments}: {error}"
            ) from error

    if "learning_rate" in arguments:
        rate = arguments["learning_rate"]
        text = _written(rate) if not isinstance(rate, _Schedule) else rate.text
        return create, f"{found.__name__}, learning rate {text} ({by})"
    default = inspect.signature(found).parameters["learning_rate"].default
    before = _RATES_OF_KERAS_2.get(found.__name__)
    changed = f"; that of Keras 2.2.4 was {before}" if before is not None else ""
    return create, (
        f"{found.__name__} ({by}), learning rate {default} (the default of Keras 3{changed})"
    )


def _custom_optimizer(
    name: str, value: Any, config: Mapping[str, Any], by: str, where: object
) -> tuple[Callable[[], Any], str]:
    def create() -> Any:
        try:
            made = value(**config) if callable(value) else value
        except (TypeError, ValueError) as error:
            raise DefinitionError(
                f"{where}: the optimizer {name} cannot be created with {dict(config)}: {error}"
            ) from error
        if not isinstance(made, keras.optimizers.Optimizer):
            raise DefinitionError(
                f"{where}: the optimizer {name} is a {type(made).__module__}."
                f"{type(made).__name__}; expected one of Keras 3: derive it from "
                "keras.optimizers.Optimizer or one of its classes."
            )
        return made

    rate = _written(config.get("learning_rate", config.get("lr", "of its own")))
    return create, f"{name} (a custom object), learning rate {rate} ({by})"


@dataclass(frozen=True)
class _Schedule:
    """A learning rate that changes over time.

    Attributes:
        create: Function () -> new Keras schedule, because optimizers must not share one.
        text: Description of the schedule, for the log.
    """

    create: Callable[[], Any]
    text: str


def _made(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.create() if isinstance(value, _Schedule) else value
        for key, value in arguments.items()
    }


def _optimizer_arguments(kind: Any, config: Mapping[str, Any], where: object) -> dict[str, Any]:
    """Convert an optimizer's config of any Keras version to arguments of a Keras 3 optimizer.

    Args:
        kind: Class of the optimizer in Keras 3.
        config: Its config, as an old or new Keras saved it or as a spec sets it.
        where: Location of the options, for errors.
    """
    arguments = {key: _value(value) for key, value in config.items() if key not in _SPEED}
    if "lr" in arguments:
        arguments.setdefault("learning_rate", arguments.pop("lr"))
        arguments.pop("lr", None)
    if arguments.get("epsilon", 0) is None:
        # Keras 2.2.4 used its backend's value, 1e-7: the default of all optimizers today.
        del arguments["epsilon"]
    if kind.__name__ == "Nadam" and arguments.get("schedule_decay") == _NADAM_OF_KERAS_2:
        # Nadam of Keras 3 does this by default.
        del arguments["schedule_decay"]
    rate = arguments.get("learning_rate")
    if isinstance(rate, Mapping):
        arguments["learning_rate"] = _schedule(rate, where)
    decay = arguments.pop("decay", None)
    if decay:
        arguments["learning_rate"] = _decayed(kind, arguments.get("learning_rate"), decay, where)
    takes = inspect.signature(kind).parameters
    for key, value in arguments.items():
        if key not in takes or takes[key].kind is inspect.Parameter.VAR_KEYWORD:
            near = difflib.get_close_matches(key, takes, n=1)
            meant = (
                f"Did you mean {near[0]}?"
                if near
                else "Write the optimizer with arguments of Keras 3 into compile_model_options."
            )
            raise DefinitionError(
                f"{where}: the optimizer {kind.__name__} of Keras 3 takes no {key!r} (it is "
                f"{value!r}). {meant}"
            )
    return arguments


def _decayed(kind: Any, rate: Any, decay: Any, where: object) -> _Schedule:
    """Return the learning rate schedule of Keras 2's `decay`: rate / (1 + decay * step).

    Args:
        kind: Class of the optimizer.
        rate: Initial learning rate; None means the default of the class.
        decay: The decay per step.
        where: Location of the options, for the error.

    Raises:
        DefinitionError: `rate` is a schedule already, or `decay` is not a number.
    """
    if isinstance(rate, _Schedule) or not isinstance(decay, (int, float)):
        raise DefinitionError(
            f"{where}: the optimizer {kind.__name__} has decay {decay!r} and a learning rate "
            "schedule; expected only one of the two."
        )
    start = rate
    if start is None:
        start = inspect.signature(kind).parameters["learning_rate"].default
    return _Schedule(
        lambda: keras.optimizers.schedules.InverseTimeDecay(
            start, decay_steps=1, decay_rate=float(decay)
        ),
        f"{_written(start)} / (1 + {_written(decay)} * step)",
    )


def _written(number: Any) -> str:
    """Return a number as the user wrote it, before Keras converted it to float32.

    Example:
        >>> _written(0.0010000000474974513), _written(0.001), _written(1 / 3)
        ('0.001', '0.001', '0.3333333333333333')
    """
    if isinstance(number, float):
        with np.errstate(over="ignore"):
            short = np.float32(number)
        if float(short) == number:
            return str(short)
    return str(number)


def _schedule(config: Mapping[str, Any], where: object) -> _Schedule:
    name, arguments, path = _named(config, "learning_rate", where)
    known = _classes(keras.optimizers.schedules, keras.optimizers.schedules.LearningRateSchedule)
    found = _find(name, known, "learning rate schedule", path, where)

    def create() -> Any:
        try:
            return found(**arguments)
        except (TypeError, ValueError) as error:
            raise DefinitionError(
                f"{where}: the learning rate schedule {name} cannot be created with "
                f"{dict(arguments)}: {error}"
            ) from error

    start = _written(arguments.get("initial_learning_rate", "as configured"))
    return _Schedule(create, f"{start} with {name}")


# --- losses --------------------------------------------------------------------------------------


def _loss(
    declared: Any, weights: Any, objects: Mapping[str, Any], where: object
) -> tuple[Loss, str]:
    several = _several(declared, where)
    if len(several) == 1:
        function, name = _one_loss(several[0], objects, where)
        factor = next((each for each in _flat(weights) if each is not None), 1.0)

        def loss(outputs: Any, labels: Any) -> Any:
            found = function(labels, outputs)
            return found if factor == 1.0 else found * factor

        return loss, name
    pairs = [_one_loss(each, objects, where) for each in several]
    factors = list(_flat(weights)) or [1.0] * len(pairs)
    if len(factors) != len(pairs):
        raise DefinitionError(
            f"{where}: there are {len(pairs)} losses and {len(factors)} loss_weights; expected one "
            "for each output."
        )

    def total(outputs: Any, labels: Any) -> Any:
        parts = zip(pairs, factors, outputs, labels, strict=True)
        return sum(
            keras.ops.mean(function(label, output)) * factor
            for (function, _), factor, output, label in parts
        )

    return total, " + ".join(name for _, name in pairs)


def _several(declared: Any, where: object) -> list[Any]:
    if isinstance(declared, Mapping) and not {"class_name", "value"} & set(declared):
        if len(declared) == 1:
            return list(declared.values())
        raise DefinitionError(
            f"{where}: the losses are named for outputs ({', '.join(declared)}); expected a list, "
            "in the order of the model's outputs."
        )
    if isinstance(declared, (list, tuple)):
        if not declared or any(each is None for each in declared):
            raise DefinitionError(
                f"{where}: the losses are {declared!r}; expected one for each output."
            )
        return list(declared)
    return [declared]


def _one_loss(declared: Any, objects: Mapping[str, Any], where: object) -> tuple[Any, str]:
    """Return the loss function `(labels, outputs)` that a config describes, and its name.

    Args:
        declared: A name, or a dict with the name and the arguments; see the module docstring.
        objects: The user's functions and classes, by name.
        where: Location of the options, for errors.

    Raises:
        DefinitionError: There is no such loss, or it cannot be created with these arguments.
    """
    name, config, path = _named(declared, "loss", where)
    if name in {"function", "LossFunctionWrapper"}:
        inner = config.get("fn") if isinstance(config, Mapping) else config
        return _one_loss(inner, objects, where)
    if name in objects:
        found = objects[name]
        made = found(**config) if inspect.isclass(found) else found
        if not callable(made):
            raise DefinitionError(
                f"{where}: the custom loss {name} is a {type(made).__name__}; expected a function "
                "(labels, predictions)."
            )
        # A `Loss` aligns the ranks itself.
        return made if isinstance(made, keras.losses.Loss) else _Aligned(made, is_own=True), name
    public = _OLD_NAMES.get(name, name)
    classes = _classes(keras.losses, keras.losses.Loss)
    if name in classes:
        return _made_with(classes[name], config, "loss", where), name
    functions = {key: value for key, value in vars(keras.losses).items() if _is_loss(key, value)}
    if public in functions and not config:
        return _Aligned(functions[public]), public
    try:
        # Short names: mse, bce, ...
        found = keras.losses.get(public)
    except ValueError:
        found = None
    if callable(found) and not config:
        return _Aligned(found), getattr(found, "__name__", public)
    raise DefinitionError(_no_such(name, {**classes, **functions}, "loss", path, where))


@dataclass(frozen=True, eq=False)
class _Aligned:
    """A loss function that first gives the labels the rank of the outputs, as `compile` does.

    Labels [n] against outputs [n, 1] broadcast to [n, n], a silent error: hinge, a Kullback-Leibler
    divergence and many user functions would return different numbers.

    Attributes:
        function: Loss function (labels, outputs).
        is_own: Whether the user has written it. Such a function gets integer labels as integers,
            which `one_hot` and indices need. If it raises, it is called again with the labels as
            floats, as Keras passes them.
    """

    function: Callable[[Any, Any], Any]
    is_own: bool = False

    def __call__(self, labels: Any, outputs: Any) -> Any:
        """Return the result of the loss function for aligned labels and outputs."""
        labels, outputs = _of_one_rank(labels, outputs)
        whole = keras.backend.standardize_dtype(labels.dtype).startswith(("int", "uint", "bool"))
        if not self.is_own or not whole:
            return self.function(labels, outputs)
        try:
            return self.function(labels, outputs)
        except Exception as error:  # noqa: BLE001
            # Many exception types: the error for mixed dtypes depends on where it is computed.
            try:
                return self.function(keras.ops.cast(labels, outputs.dtype), outputs)
            except Exception:  # noqa: BLE001 - the first one is about what the user wrote
                raise error from None


def _of_one_rank(labels: Any, outputs: Any) -> tuple[Any, Any]:
    """Return labels and outputs as tensors, after adding or removing a last axis of the labels.

    For example, labels [n] become [n, 1] for outputs [n, 1]. Other shapes are not changed.
    """
    labels, outputs = keras.ops.convert_to_tensor(labels), keras.ops.convert_to_tensor(outputs)
    difference = len(outputs.shape) - len(labels.shape)
    if difference == 1 and outputs.shape[-1] == 1:
        return keras.ops.expand_dims(labels, -1), outputs
    if difference == -1 and labels.shape[-1] == 1:
        return keras.ops.squeeze(labels, -1), outputs
    return labels, outputs


def takes_one_hot(loss: Loss, num_classes: int) -> bool:
    """Return whether a user's loss needs labels as one-hot rows: it accepts these, but no integers.

    This decides in which form labels are passed to the loss. The loss is tried on more examples
    than classes: with equal numbers, a loss for one-hot rows would broadcast integer labels over
    the columns and accept them.

    Args:
        loss: Function (outputs, labels) -> loss.
        num_classes: Number of scores per example.
    """
    number = num_classes + 1
    outputs = keras.ops.full((number, num_classes), 1 / num_classes)
    labels = np.arange(number) % num_classes

    def is_taken(given: Any) -> bool:
        try:
            found = loss(outputs, keras.ops.convert_to_tensor(given))
            return tuple(found.shape) in {(), (number,)}
        except Exception:  # noqa: BLE001 - whatever a user's function raises: it does not take it
            return False

    return not is_taken(labels) and is_taken(np.eye(num_classes, dtype=np.float32)[labels])


def _is_loss(name: str, value: Any) -> bool:
    return inspect.isfunction(value) and name not in {"get", "serialize", "deserialize"}


# --- metrics -------------------------------------------------------------------------------------


def _metric(declared: Any, objects: Mapping[str, Any], where: object) -> tuple[str, Any]:
    """Create the metric that a config describes, and return it with its name.

    It is a Keras metric or a function `(labels, predictions)`.
    """
    name, config, path = _named(declared, "metric", where)
    if name in {"function", "MeanMetricWrapper", "SumOverBatchSizeMetricWrapper"}:
        inner = config.get("fn") if isinstance(config, Mapping) else config
        called, function = _metric(inner, objects, where)
        own = config.get("name") if isinstance(config, Mapping) else None
        if own in _ACCURACY:
            # tf_keras compiles `metrics=["accuracy"]` to a guess before it has seen any labels; the
            # labels show which accuracy is meant.
            return "accuracy", _accuracy
        return str(own or called), function
    if name in _ACCURACY or (isinstance(declared, str) and name.lower() in _ACCURACY):
        # `Accuracy` as well: Keras takes a string for the word, and a config for the class.
        return "accuracy", _accuracy
    if name in objects:
        found = objects[name]
        return name, found(**config) if inspect.isclass(found) else found
    classes = _classes(keras.metrics, keras.metrics.Metric)
    if name in classes:
        made = _made_with(classes[name], config, "metric", where)
        return made.name, made
    try:
        function = keras.metrics.get(_OLD_NAMES.get(name, name))
    except ValueError:
        function = None
    if callable(function) and not config:
        return name, function
    known = {**classes, **vars(keras.metrics), "accuracy": _accuracy}
    raise DefinitionError(_no_such(name, known, "metric", path, where))


def _accuracy(labels: Any, predictions: Any) -> Any:
    """Return 1 for each correct prediction and 0 for a wrong one, as Keras' "accuracy" does.

    The shapes decide whether this is binary, categorical or sparse categorical accuracy.
    """
    if predictions.shape[-1] == 1:
        return keras.metrics.binary_accuracy(labels, predictions)
    if len(labels.shape) == len(predictions.shape) and labels.shape[-1] == predictions.shape[-1]:
        return keras.metrics.categorical_accuracy(labels, predictions)
    return keras.metrics.sparse_categorical_accuracy(labels, predictions)


# --- names and arguments -------------------------------------------------------------------------


def _named(declared: Any, what: str, where: object) -> tuple[str, Any, str | None]:
    """Return the name, arguments and module of an optimizer, loss or metric in a config.

    Args:
        declared: The description, in one of the forms in the module docstring.
        what: The kind of object, such as "optimizer", for the error.
        where: Location of the options, for the error.

    Raises:
        DefinitionError: The description has none of these forms.
    """
    if isinstance(declared, str):
        return declared.rpartition(">")[2], {}, None
    if isinstance(declared, Mapping) and isinstance(declared.get("class_name"), str):
        name = declared["class_name"].rpartition(">")[2]
        config = declared.get("config")
        if name == "function":
            return str(config), {}, None
        return name, dict(config) if isinstance(config, Mapping) else {}, None
    if isinstance(declared, Mapping) and isinstance(declared.get("value"), str):
        arguments = declared.get("args") or {}
        if isinstance(arguments, Mapping):
            path = declared.get("path")
            values = {str(key): _value(value) for key, value in arguments.items()}
            return declared["value"], values, str(path) if path else None
    raise DefinitionError(
        f"{where}: the {what} is {declared!r}; expected a name, or {{value: <name>, "
        "path: <module>, args: {...}}."
    )


def _value(value: Any) -> Any:
    """Convert a string from YAML to the value it means: `"true"` to True, `"1e-3"` to 0.001."""
    if not isinstance(value, str):
        return value
    if value.lower() in {"true", "false"}:
        return value.lower() == "true"
    return float(value) if _NUMBER.fullmatch(value) else value


def _classes(module: Any, kind: type) -> dict[str, Any]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, kind) and value is not kind
    }


def _find(name: str, known: Mapping[str, Any], what: str, path: str | None, where: object) -> Any:
    folded = {each.lower(): value for each, value in known.items()}
    if name.lower() in folded:
        return folded[name.lower()]
    raise DefinitionError(_no_such(name, known, what, path, where))


def _no_such(
    name: str, known: Mapping[str, Any], what: str, path: str | None, where: object
) -> str:
    if unclear := unclear_crossentropy(name):
        return f"{where}: {unclear}"
    folded = {each.lower(): each for each in known if not each.startswith("_")}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.75)
    meant = f" Did you mean {folded[near[0]]!r}?" if near else ""
    of = f" of {path!r}" if path else ""
    return (
        f"{where}: the {what} {name!r}{of} is not part of Keras 3.{meant}\n"
        f"  If it is your own, declare it: custom_objects: [{{key: {name}, value: {name}, path: "
        "<your file>.py}]."
    )


def _made_with(kind: Any, config: Mapping[str, Any], what: str, where: object) -> Any:
    """Return a loss or a metric created from a config of any Keras version.

    Args:
        kind: Class of the loss or metric in Keras 3.
        config: Arguments of the class.
        what: "loss" or "metric", for errors.
        where: Location of the options, for errors.

    Raises:
        DefinitionError: The class does not take these arguments.
    """
    arguments = {
        # `fn` is implied by the class name; the dtype of the sums is our choice.
        key: value
        for key, value in config.items()
        if key not in {"fn", "dtype"} and value is not None
    }
    if arguments.get("reduction") == "auto":
        arguments["reduction"] = "sum_over_batch_size"
    takes = inspect.signature(kind).parameters
    unknown = [key for key in arguments if key not in takes]
    if unknown:
        raise DefinitionError(
            f"{where}: the {what} {kind.__name__} of Keras 3 takes no {unknown[0]!r} (it is "
            f"{arguments[unknown[0]]!r}). Specify the {what} with arguments of Keras 3 in "
            "compile_model_options."
        )
    try:
        return kind(**arguments)
    except (TypeError, ValueError) as error:
        raise DefinitionError(
            f"{where}: the {what} {kind.__name__} cannot be created with {arguments}: {error}"
        ) from error


def _flat(value: Any) -> Sequence[Any]:
    """Flatten nested lists, and mappings of output name -> value, to a list of values."""
    if value is None:
        return []
    if isinstance(value, Mapping) and not {"class_name", "value"} & set(value):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [inner for each in value for inner in (_flat(each) if each is not None else [])]
    return [value]
