"""Tracks Python attributes (numbers, arrays, flags, functions) that a compiled step reads once.

A step reads `optimizer.weight_decay`, `layer.rate`, `layer.activation`, `loss.gamma` or
`layer.trainable` when it is compiled, and never again. The same holds for attributes of the objects
in them, such as a regularizer, a constraint, a learning rate schedule or an object of the user's.
`fit` compiles the training step at the first batch, after the first calls of callbacks, and the
evaluation at the first validation. A resumed run compiles both in the middle of training, and
workers compile them before training begins. To get the results of `fit` in all cases, changes are
treated according to their time:

    set by the model file               as_in_file(): every step is compiled with these
    changed before the first step       rejected: `fit` would train with it, but a step that was
                                        compiled earlier, as on workers, would not
    changed before the first validation evaluations are compiled with it, as in `fit`
    changed later                       no effect on steps, as in `fit`; checkpoints store it
                                        (`changed`), because callbacks may read it

Private attributes are those of the user's classes; the ones that Keras uses are left out.

The steps of a model with `run_eagerly=True` may themselves change attributes, numbers in lists and
positions of iterators. A compiled step would do so only once, so such a change is rejected when the
step is compiled.

Callers: `trainer.py`.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import (
    Collection,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
)
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import tensorflow as tf

from elasticdl.errors import DefinitionError
from elasticdl.training.iterators import position_of
from elasticdl.training.keras.callback_state import CONFIGURED
from elasticdl.training.keras.read_variables import (
    Variables,
    is_of_library,
    is_of_user,
    names_in,
    private_names,
    used_by,
    variables_of,
)

if TYPE_CHECKING:
    from elasticdl.definition import Origin

_PLAIN = (type(None), bool, int, float, str)
# Maximum depth of lists, dicts and iterators within each other.
_DEPTH = 4
_TRAINABLE = "_trainable"
# Private attributes of Keras that a step reads: of variables, of losses and of metrics.
_PRIVATE = {_TRAINABLE, "_regularizer", "_constraint", "_fn", "_fn_kwargs"}
_OF_KERAS = {
    "built",
    "compiled",
    "stop_training",
    "stop_evaluating",
    "stop_predicting",
    "train_function",
    "test_function",
    "predict_function",
}
_MISSING = object()
# Larger arrays are not copied, so a change of them is not noticed.
_MAX_BYTES = 16 << 20
# Objects of Keras whose attributes a step reads, among those that models and losses hold.
_READ = (*CONFIGURED, keras.losses.Loss, keras.metrics.Metric)
# Objects that are never compared by identity: Keras or the user's callbacks replace them freely.
_NOT_COMPARED = (type, keras.Variable, keras.Optimizer, keras.callbacks.Callback)
_LEARNING_RATE = "_learning_rate"
_DEPTH_OF_OBJECTS = 2
_FUNCTIONS = (types.FunctionType, types.MethodType)
_CALLERS = (*_FUNCTIONS, functools.partial, keras.losses.Loss, keras.metrics.Metric)


@dataclass(frozen=True, eq=False)
class _Identity:
    """Wraps a function or object in the recorded attributes, so that it is compared by identity."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class _Tracked:
    """An object with attributes that a compiled step reads.

    Attributes:
        owner: The object; or `Variables` of a module, class or closure, treated as attributes.
        name: How messages name it.
        key: Prefix of the keys of its attributes in checkpoints.
        made: Its attributes as the user's file set them.
        is_of_step: Whether it belongs to the loss or the metrics. Steps that run uncompiled may
            change its attributes; such changes are not undone.
        only: Names of the attributes that a step may read; None: any.
    """

    owner: Any
    name: str
    key: str
    made: dict[str, Any]
    is_of_step: bool
    only: frozenset[str] | None = None

    def values(self) -> dict[str, Any]:
        """Return name -> present value of the attributes that a step may read."""
        if isinstance(self.owner, Variables):
            return _copies(_only(self.owner.place, self.owner.names))
        values = _values(self.owner)
        return values if self.only is None else _only(values, self.only)


class Attributes:
    """Tracks plain Python attributes, which a compiled step reads only once.

    Records the values that the user's file set, so that steps can be compiled with these whenever
    that happens. Finds values that user code sets later, so that checkpoints can store them.

    Tracked are the attributes of a model, its layers, weights and optimizer, of the loss and the
    metrics, and of the objects stored in them. Functions and objects are compared by identity.

    Args:
        origin: Prefix for error messages.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        # Key: `id` of an object with attributes, or the `identity` of a `Variables`.
        self._tracked: dict[Hashable, _Tracked] = {}
        self._num_of_step = 0
        # The changes that evaluations are compiled with, by key. None before the first evaluation.
        self._in_evaluation: dict[str, Any] | None = None
        # Keys of attributes that a step has changed while it was compiled, such as a counter.
        self._of_steps: set[str] = set()

    def track_model(self, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> None:
        """Watch the attributes of a model, its layers, its weights and its optimizer.

        The present values count as those of the user's file, so call this before user code changes
        any. Values that it sets later are then found by `changed` and saved in checkpoints.

        Args:
            model: The model, as the user's file created it.
            optimizer: Its optimizer, as the user's file created it.
        """
        # Keras has no public name for the list of all layers, including nested ones.
        layers = [model, *model._flatten_layers(include_self=False)]  # noqa: SLF001
        owners = (*layers, *_optimizers(optimizer), *model.variables)
        found = {id(each): (each, _name(each)) for each in owners}
        for owner in owners:
            for name, each in _held(owner, _name(owner), _DEPTH_OF_OBJECTS):
                found.setdefault(id(each), (each, name))
        for number, (owner, name) in enumerate(found.values()):
            known = self._tracked.get(id(owner))
            # The loss of a compiled model may be known already, with the attributes it had earlier.
            if known is None:
                known = _Tracked(owner, name, "", _values(owner), is_of_step=False)
            self._tracked[id(owner)] = replace(known, key=str(number))
        self._track_variables(owner for owner, _ in found.values())

    def track_of_step(self, owners: Iterable[Any]) -> None:
        """Watch the attributes of losses or metrics, and of the objects in them.

        As in `track_model`, the present values count as those of the user's file. The code of a
        loss may also read a callback: of that, only the attributes that the code names are watched.

        Args:
            owners: The losses or metrics, which are objects or functions.
        """
        readers = []
        for owner in owners:
            name = _name(owner)
            found = [(name, owner), *_held(owner, name, _DEPTH_OF_OBJECTS + 1)]
            others = [each for _, each in found if not isinstance(each, keras.callbacks.Callback)]
            read = frozenset[str]().union(*map(names_in, others))
            readers += others
            for called, each in found:
                if hasattr(each, "__dict__") and id(each) not in self._tracked:
                    key = f"of_step{self._num_of_step}"
                    self._num_of_step += 1
                    # A callback has a state of its own beside what a loss may read of it.
                    only = read if isinstance(each, keras.callbacks.Callback) else None
                    values = _values(each) if only is None else _only(_values(each), only)
                    self._tracked[id(each)] = _Tracked(each, called, key, values, True, only)
        self._track_variables(readers)

    def _track_variables(self, owners: Iterable[Any]) -> None:
        """Watch the module, class and closure variables that code of a step reads.

        Args:
            owners: The functions of a step, or the objects whose methods it calls.
        """
        for variables in variables_of(owners):
            known = self._tracked.get(variables.identity)
            if known is not None:
                variables.names.update(known.owner.names)
            key = f"variables{len(self._tracked)}" if known is None else known.key
            each = _Tracked(variables, variables.called, key, {}, is_of_step=True)
            each.made.update(each.values() | (known.made if known else {}))
            self._tracked[variables.identity] = each

    @property
    def of_step(self) -> list[Any]:
        """The tracked losses and metrics, objects in them, and variables that a step reads."""
        return [each.owner for each in self._tracked.values() if each.is_of_step]

    def stored(self) -> set[tuple[int, str]]:
        """Return the keys of all attributes and variables whose changes are saved in checkpoints.

        Other checks use this to warn only of values that no checkpoint stores. A key is a pair: the
        id of the object, module, class or closure cell that holds the value, and the value's name.
        """
        return {
            each.owner.key(name) if isinstance(each.owner, Variables) else (id(each.owner), name)
            for each in self._tracked.values()
            for name in each.values()
        }

    @contextlib.contextmanager
    def as_in_file(self, *, in_evaluation: bool = False, runs: bool = False) -> Iterator[None]:
        """Context manager for compiling a step: resets attributes to what the user's file set.

        On exit the previous values are restored; an attribute changed inside the block keeps its
        new value.

        Args:
            in_evaluation: Whether an evaluation is compiled, which sees what callbacks changed
                before the first one.
            runs: Whether the step runs in the block, instead of only being compiled. Attributes of
                the loss and the metrics are then left alone, because each run may change them.
        """
        seen = (self._in_evaluation or {}) if in_evaluation else {}
        moved = []
        read = [each for each in self._tracked.values() if not (runs and each.is_of_step)]
        for each in read:
            vars_ = _vars(each.owner)
            for name in _changes(each.owner, each.made, each.values(), with_new=True):
                wanted = each.made.get(name, _MISSING)
                moved.append((each, name, vars_.get(name, _MISSING), wanted))
                _put(each.owner, name, wanted)
            for name, value in _of(each.key, seen).items():
                moved.append((each, name, vars_.get(name, _MISSING), value))
                _put(each.owner, name, value)
        values = [each.values() for each in read]
        try:
            yield
        finally:
            for each, before in zip(read, values, strict=True):
                for name, value in _changes(each.owner, before, each.values()).items():
                    self._of_steps.add(f"{each.key}/{name}")
                    if isinstance(value, _Identity):
                        # A step that is compiled after a resume creates it again.
                        each.made[name] = value
            for each, name, value, put in reversed(moved):
                if _same(each.values().get(name, _MISSING), put):
                    if value is _MISSING:
                        _vars(each.owner).pop(name, None)
                    else:
                        _vars(each.owner)[name] = value

    def begin_evaluation(self) -> bool:
        """Record the attributes that callbacks have changed so far, for compiling evaluations.

        As in `fit`, evaluations are compiled with the values before the first evaluation, so only
        the first call has an effect.

        Returns:
            Whether attributes differ from those of the file, so that an evaluation which was
            compiled earlier must be compiled again.
        """
        if self._in_evaluation is not None:
            return False
        changed = self._changed()
        self._in_evaluation = {key: changed[key] for key in changed.keys() - self._of_steps}
        return bool(self._in_evaluation)

    def changed(self) -> dict[str, Any]:
        """Return the attributes that differ from those that the user's file set, for `restore`.

        Returns:
            Key such as "3/rate" -> a copy of the value. The number identifies the object that has
            the attribute, such as a layer.
        """
        return {key: _raw(value) for key, value in self._changed().items()}

    def changed_in_evaluation(self) -> dict[str, Any] | None:
        """Return the attributes that evaluations are compiled with and that callbacks have changed.

        A resumed process passes them to `restore`, to compile the same evaluations.

        Returns:
            Key -> value, in the format of `changed`; None before the first evaluation.
        """
        if self._in_evaluation is None:
            return None
        return {key: _raw(value) for key, value in self._in_evaluation.items()}

    def _changed(self) -> dict[str, Any]:
        return {
            f"{each.key}/{name}": value
            for each in self._tracked.values()
            for name, value in _changes(each.owner, each.made, each.values(), with_new=True).items()
        }

    def name_of(self, key: str) -> str:
        """Return a phrase for error messages, such as "rate of dropout", for a key of `changed`."""
        owner, _, name = key.partition("/")
        names = {each.key: each.name for each in self._tracked.values()}
        return f"{_shown(name)} of {names[owner]}"

    def restore(
        self, changed: Mapping[str, Any], in_evaluation: Mapping[str, Any] | None = None
    ) -> None:
        """Set attributes to the values that `changed` returned in an earlier process.

        Args:
            changed: What `changed` returned.
            in_evaluation: What `changed_in_evaluation` returned.
        """
        owners = {each.key: each.owner for each in self._tracked.values()}
        for key, value in changed.items():
            owner, _, name = key.partition("/")
            _put(owners[owner], name, value)
        self._in_evaluation = None
        if in_evaluation is not None:
            self._in_evaluation = {
                key: _copied(value, _DEPTH) for key, value in in_evaluation.items()
            }

    @contextlib.contextmanager
    def watched(self, who: str, advice: str, *, within: bool = False) -> Iterator[None]:
        """Context manager that raises an error if the code in its block changes an attribute.

        Args:
            who: The code that may change them, for the error message.
            advice: What to do instead.
            within: Whether to also reject changes inside attribute values: of numbers in lists and
                dicts, and of positions of iterators.

        Raises:
            DefinitionError: An attribute has another value at the end.
        """

        def read(each: _Tracked) -> dict[str, Any]:
            return _values_within(each.owner) if within and each.only is None else each.values()

        tracked = list(self._tracked.values())
        before = [read(each) for each in tracked]
        yield
        for each, values in zip(tracked, before, strict=True):
            found = _changes(each.owner, values, read(each))
            # Public names first: Keras keeps some values twice.
            for name in sorted(found, key=lambda name: name.startswith("_")):
                raise DefinitionError(
                    f"{self._origin}: {who} changes {_shown(name)} of "
                    f"{each.name} ({_kind(each.owner)}). {advice}"
                )


def _shown(name: str) -> str:
    return name.removeprefix("_") if name in _PRIVATE else name


def _kind(owner: Any) -> str:
    return owner.kind if isinstance(owner, Variables) else type(owner).__name__


def _of(key: str, changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed attributes of one object, by name.

    Args:
        key: Key of the object, such as "3" for the entries "3/rate" and "3/units".
        changed: The changed attributes of all objects, as `Attributes.changed` returns them.
    """
    split = ((name.partition("/"), value) for name, value in changed.items())
    return {name: value for (owner, _, name), value in split if owner == key}


def _only(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}


def _values(owner: Any) -> dict[str, Any]:
    plain = {
        name: _number(value)
        for name, value in vars(owner).items()
        if not (_is_private(owner, name) or name in _OF_KERAS)
    }
    return _copies(plain)


def _is_private(owner: Any, name: str) -> bool:
    """Return whether no step reads an attribute: a private one that is not of a user's class."""
    class_: Any = type(owner)
    return name.startswith("_") and name not in _PRIVATE and name not in private_names(class_)


def _copies(values: Mapping[str, Any]) -> dict[str, Any]:
    copies = {name: _copied(value, _DEPTH) for name, value in values.items()}
    return {name: value for name, value in copies.items() if value is not _MISSING}


def _copied(value: Any, depth: int) -> Any:
    """Return a copy of an attribute's value, to compare later values with it.

    Functions, and objects that a step may call or read, are not copied but wrapped in `_Identity`.
    Values that are not compared, such as large arrays, become `_MISSING`.

    Args:
        value: A number, a string, a small array, or a list or dict of these, or anything else.
        depth: How many levels of lists and dicts to copy.
    """
    value = _number(value)
    if type(value) in _PLAIN:
        return value
    if _is_compared(value):
        return _Identity(value)
    if isinstance(value, np.ndarray):
        return value.copy() if value.nbytes <= _MAX_BYTES and value.dtype != object else _MISSING
    if isinstance(value, (set, frozenset)):
        is_plain = all(type(each) in _PLAIN for each in value)
        return _builtin(value) if is_plain else _MISSING
    if depth == 0 or not isinstance(value, (list, tuple, Mapping)):
        return _MISSING
    items = value if isinstance(value, Mapping) else dict(enumerate(value))
    copies = {key: _copied(each, depth - 1) for key, each in items.items()}
    if any(each is _MISSING for each in copies.values()):
        return _MISSING
    if isinstance(value, Mapping):
        return copies
    return tuple(copies.values()) if isinstance(value, tuple) else list(copies.values())


def _is_compared(value: Any) -> bool:
    """Return whether a value is compared by identity: a function, or an object a step may use."""
    return not isinstance(value, _NOT_COMPARED) and (callable(value) or is_of_user(value))


def _raw(value: Any) -> Any:
    """Return a value with each `_Identity` in it replaced by the object that it wraps."""
    if isinstance(value, _Identity):
        return value.value
    if isinstance(value, dict):
        return {key: _raw(each) for key, each in value.items()}
    return type(value)(map(_raw, value)) if isinstance(value, (list, tuple)) else value


def _name(owner: Any) -> str:
    names = (getattr(owner, name, None) for name in ("path", "name", "__qualname__"))
    return str(next(filter(None, names), type(owner).__name__))


def _held(owner: Any, name: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Find objects inside `owner` that also have attributes to track; yield (name, object).

    Such objects are regularizers, constraints, learning rate schedules, losses, metrics and
    objects of the user's classes.

    Args:
        owner: A model, layer, weight, optimizer, loss or metric, or an object found in one of
            these; a loss may be a function.
        name: How messages name `owner`.
        depth: How many levels of objects within objects to search.
    """
    attributes = {**getattr(owner, "__dict__", {}), **used_by(owner)}
    for attribute, value in attributes.items():
        if attribute != _LEARNING_RATE and _is_private(owner, attribute):
            continue
        # Functions are followed only from a loss, a metric, or a function that may call them.
        of_caller = isinstance(owner, _CALLERS) and isinstance(value, _FUNCTIONS)
        followed = of_caller and not is_of_library(value.__module__)
        for each in [value] if followed else _objects_in(value, _DEPTH):
            called = value.__qualname__ if followed else f"{attribute.removeprefix('_')} of {name}"
            yield called, each
            if depth > 1:
                yield from _held(each, called, depth - 1)


def _objects_in(value: Any, depth: int) -> Iterator[Any]:
    if depth and isinstance(value, (list, tuple, Mapping)):
        for each in list(value.values() if isinstance(value, Mapping) else value):
            yield from _objects_in(each, depth - 1)
    elif isinstance(value, _READ) or is_of_user(value):
        yield value


def _values_within(owner: Any) -> dict[str, Any]:
    """Return name -> value of the numbers, strings and bools in the attributes of `owner`.

    Those inside lists and dicts are included, as `a[0]`. An iterator is represented by its current
    position.
    """
    values = {name: each for name, each in _values(owner).items() if type(each) in _PLAIN}
    for name, value in list(vars(owner).items()):
        if type(value) not in _PLAIN and not _is_private(owner, name):
            values |= dict(_entries(name, value, _DEPTH))
    return values


def _entries(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    value = _number(value)
    if type(value) in _PLAIN:
        yield name, value
    elif depth == 0:
        return
    elif isinstance(value, Iterator):
        # An iterator counts as one value, its position.
        position = [_entries("", each, depth - 1) for each in position_of(value)]
        yield name, repr([list(each) for each in position])
    elif isinstance(value, (set, frozenset)):
        yield name, repr(sorted(map(repr, value)))
    elif isinstance(value, (list, tuple, Mapping)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in list(items):
            yield from _entries(f"{name}[{key!r}]", each, depth - 1)


def _builtin(value: set[Any] | frozenset[Any]) -> set[Any] | frozenset[Any]:
    """Return a copy of a set, without Keras' class that tracks it."""
    return frozenset(value) if isinstance(value, frozenset) else set(value)


def _number(value: Any) -> Any:
    """Convert a NumPy or TensorFlow scalar to a Python number; return other values unchanged."""
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        value = value.numpy()
    is_number = isinstance(value, (np.generic, np.ndarray)) and value.ndim == 0
    return value.item() if is_number else value


def _changes(
    owner: Any, before: dict[str, Any], now: dict[str, Any], *, with_new: bool = False
) -> dict[str, Any]:
    """Return name -> new value for the attributes of an object that have changed.

    An attribute missing from `before` is compared with the default in the class of `owner`. If the
    class has none either, the attribute is new, and is left out unless `with_new` is True. A new
    attribute that is a function or an object is always left out: it belongs to the callback that
    added it.

    Args:
        owner: The object.
        before: Name -> earlier value.
        now: Name -> present value.
        with_new: Whether to return new attributes.
    """
    return {
        name: value
        for name, value in now.items()
        if (
            (with_new and not isinstance(value, _Identity))
            or name in before
            or hasattr(type(owner), name)
        )
        and not _same(value, before.get(name, getattr(type(owner), name, _MISSING)))
    }


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and (one == other or one != one)  # noqa: PLR0124 - NaN


def _put(owner: Any, name: str, value: Any) -> None:
    # Bypasses the setters of Keras, which pass `trainable` on to other layers.
    if value is _MISSING:
        _vars(owner).pop(name, None)
    else:
        _vars(owner)[name] = _raw(value)


def _vars(owner: Any) -> MutableMapping[str, Any]:
    return owner.place if isinstance(owner, Variables) else vars(owner)


def _optimizers(optimizer: Any) -> list[Any]:
    inner = [getattr(optimizer, "inner_optimizer", None), *getattr(optimizer, "optimizers", ())]
    return [optimizer, *(one for each in inner if each is not None for one in _optimizers(each))]
