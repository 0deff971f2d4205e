"""Calls users' evaluation functions: computes one value of each function for each example.

A function takes one example, `(y_true, y_pred)`, and returns a number. The reported values must
equal those of one call per example. But one call of a Keras function takes about a millisecond. So
a TensorFlow function is traced once for a whole block of rows; the block's values are used only if
they agree with single calls for a sample of its rows:

    read its code (`traceable.py`) -> first rows one by one -> trace (`tensorflow.py`)
       -> equal on those and on rows drawn at random? -> blocks; first and last row of each
          | no                                           | checked one by one
          +-----------> one by one from now on <---------+ differs

Callers: `report_writer.py`, and through it sessions and `elasticdl evaluate --report`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.data.batch import leaves, map_arrays
from elasticdl.errors import (
    DefinitionError,
    ElasticDLError,
    UserCodeError,
    raised_at,
    users_traceback,
)
from elasticdl.evaluation.traceable import why_not_traceable

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays

EvalFunction: TypeAlias = "Callable[[Any, Any], Any]"
"""`(y_true, y_pred)` of one example -> a number, or a tensor with one number."""

_BlockFunction: TypeAlias = "Callable[[Any, Any], tuple[np.ndarray[Any, Any], str]]"

# Rows that are computed one by one before a block is trusted: the first ones in order, so that a
# function that counts its calls is detected before it is called once too often.
_FIRST_ROWS = 32
_RANDOM_ROWS = 16
# A column computed in blocks may differ by eight units in the last place of float32: kernels sum a
# block in another order than a row, an error of some units (one or two where measured). Relative to
# the largest value seen: the difference of two nearly equal numbers has the error of those numbers.
_TOLERANCE = 1e-6


class EvalFunctions:
    """Calls named per-example functions and returns their values for a batch.

    Args:
        functions: Name -> function, or functions that are named by their `__name__`; None means
            no functions. An object with `name` and `get_func()`, such as `aimedeval.EvalFunc`,
            stands for the function that `get_func()` returns.

    Attributes:
        names: Names of the functions, in the order given.

    Raises:
        DefinitionError: `functions` is neither a mapping nor a list, a name is not a string, a
            value is not a function, or two functions have the same name.

    Example:
        >>> functions = EvalFunctions({"off by": lambda y_true, y_pred: abs(y_true - y_pred)})
        >>> functions.columns(["a", "b"], np.float32([1, 2]), np.float32([1, 5]))["off by"]
        array([0., 3.])
    """

    def __init__(
        self, functions: Mapping[str, EvalFunction] | Sequence[EvalFunction] | None = None
    ) -> None:
        self._columns = [_Column(name, function) for name, function in _named(functions)]
        self.names = tuple(column.name for column in self._columns)

    @property
    def notes(self) -> list[str]:
        """Notes for the user on functions whose values differ between blocks and single rows.

        An example is "off by: computed one by one from row 128 on: a.jpg: 0.3 when called alone,
        0.5 in a block".
        """
        return [column.note for column in self._columns if column.note]

    @property
    def value_types(self) -> dict[str, str]:
        """Function name -> precision of its values, for the number of digits in CSV files.

        It is `float64` if the function returned a type wider than float32, else `float32`.
        """
        return {column.name: column.value_type for column in self._columns}

    def columns(
        self, ids: Sequence[Any], labels: Arrays, outputs: Arrays
    ) -> dict[str, np.ndarray[Any, Any]]:
        """Return the value of each function for each example.

        A function receives numpy values: a scalar where an example has one value, else an array. A
        function that calls `.numpy()` on them fails. It is then called again with tensors, and so
        for all later examples.

        Args:
            ids: The ids of the examples, for messages.
            labels: An array or nested arrays, with one entry per example along the first axis.
            outputs: The model's outputs, in the same form.

        Returns:
            Name -> float64, one value per example. If a function returns None for an example, the
            value is NaN.

        Raises:
            UserCodeError: A function raised.
            DefinitionError: A function returned something other than one number.
        """
        for array in (*leaves(labels), *leaves(outputs)):
            if len(array) != len(ids):
                raise ValueError(f"{len(array)} rows of labels or outputs for {len(ids)} examples")
        return {column.name: column.values(ids, labels, outputs) for column in self._columns}


def _named(functions: Any) -> list[tuple[str, EvalFunction]]:
    if functions is None:
        return []
    if isinstance(functions, Mapping):
        pairs = [(name, _function_of(function)) for name, function in functions.items()]
    elif isinstance(functions, (list, tuple)):
        pairs = [(_own_name(function), _function_of(function)) for function in functions]
    else:
        raise DefinitionError(
            f"The evaluation functions are a {type(functions).__name__}. Expected a dict of name "
            "-> function, or a list of functions."
        )
    seen: dict[str, EvalFunction] = {}
    for name, function in pairs:
        if not isinstance(name, str):
            raise DefinitionError(
                f"The evaluation function {where_is(function)} is named {name!r}, a "
                f"{type(name).__name__}. Expected a string: it names a column."
            )
        if not callable(function):
            raise DefinitionError(
                f"The evaluation function {name!r} is a {type(function).__name__}; expected a "
                "function (y_true, y_pred) of one example that returns a number."
            )
        if name in seen:
            raise DefinitionError(
                f"Two evaluation functions are named {name!r}: {where_is(seen[name])} and "
                f"{where_is(function)}. Each needs its own column: return a dict of name -> "
                "function instead of a list, or set one's `__name__`."
            )
        seen[name] = function
    return pairs


def _function_of(given: Any) -> Any:
    """Return the function of an object like `aimedeval.EvalFunc`; anything else is unchanged."""
    if not hasattr(given, "get_func"):
        return given
    try:
        return given.get_func()
    except Exception as error:
        raise UserCodeError(
            f"{type(given).__name__}.get_func() raised:\n{users_traceback(error)}"
        ) from error


def _own_name(function: Any) -> Any:
    if hasattr(function, "get_func"):
        named = getattr(function, "name", None)
        return named() if callable(named) else named or type(function).__name__
    inner = function.func if isinstance(function, functools.partial) else function
    name = getattr(inner, "__name__", None)
    return getattr(inner, "name", type(inner).__name__) if name is None else name


def where_is(function: Any) -> str:
    """Return `file:line` of a function, or a description of it if it has no source file."""
    inner = inspect.unwrap(function) if callable(function) else function
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = getattr(inner, "python_function", inner)
    if not hasattr(inner, "__code__"):
        inner = vars(type(inner)).get("__call__", inner)
    code = getattr(inner, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(function)


class _Column:
    """Computes the values of one function, for blocks of rows where possible, else row by row."""

    def __init__(self, name: str, function: EvalFunction) -> None:
        self.name = name
        self.note = ""
        self._function = function
        self._given: Callable[[Any], Any] = _as_it_is
        self._blocks: dict[str, _BlockFunction] = {}
        self._reason = ""
        self._largest = 0.0
        self._wide = False
        self._num_rows = 0
        # The checked rows must be the same in each run, so the seed is fixed; no secret depends on
        # it.
        self._random = np.random.default_rng(0)

    @property
    def value_type(self) -> str:
        return "float64" if self._wide else "float32"

    def values(self, ids: Sequence[Any], labels: Any, outputs: Any) -> np.ndarray[Any, Any]:
        values = np.empty(len(ids), np.float64)

        def one_by_one(start: int, stop: int) -> None:
            for row in range(start, stop):
                values[row] = self._value(ids[row], _row(labels, row), _row(outputs, row))

        if len(ids) <= _FIRST_ROWS or not self._may_be_traced():
            one_by_one(0, len(ids))
        else:
            key = signature(labels, outputs)
            first = _FIRST_ROWS if key not in self._blocks else 0
            one_by_one(0, first)
            block = self._block(key, labels, outputs)
            if block is None or not self._equal(ids, labels, outputs, block, values[:first]):
                one_by_one(first, len(ids))
            else:
                # Values computed one by one are kept.
                values[first:] = block[first:]
        self._num_rows += len(ids)
        return values

    def _may_be_traced(self) -> bool:
        if self._reason:
            return False
        # If TensorFlow has not been imported, no function uses it, and importing it would only cost
        # time.
        if "tensorflow" not in sys.modules:
            return False
        if not self._num_rows:
            self._reason = why_not_traceable(self._function)
        return not self._reason

    def _block(self, key: str, labels: Any, outputs: Any) -> np.ndarray[Any, Any] | None:
        """Return the function's values for a block of rows; None if the function cannot be traced.

        After None, all later rows are computed one by one.

        Args:
            key: Signature of the rows (`signature`); the function is traced once per signature.
            labels: The labels of the block.
            outputs: The model's outputs for the block.
        """
        from elasticdl.evaluation import tensorflow  # noqa: PLC0415 - imports TensorFlow

        try:
            if key not in self._blocks:
                self._blocks[key] = tensorflow.traced(self._function, labels, outputs)
            column, dtype = self._blocks[key](labels, outputs)
        except Exception as error:  # noqa: BLE001 - user code may raise anything when it is traced
            self._reason = f"it cannot be traced: {type(error).__name__}"
            return None
        self._wide |= dtype not in _NARROW
        return column

    def _equal(
        self,
        ids: Sequence[Any],
        labels: Any,
        outputs: Any,
        block: np.ndarray[Any, Any],
        first: np.ndarray[Any, Any],
    ) -> bool:
        """Return whether a block's values equal those of single calls, for a sample of its rows.

        If they differ, all later rows are computed one by one, and `note` says so.

        Args:
            ids: Ids of the rows, for messages.
            labels: The labels of the block.
            outputs: The model's outputs for the block.
            block: The values to check.
            first: Values of the first rows, if they are already known from single calls.
        """
        last = len(ids) - 1
        if len(first):
            drawn = self._random.integers(len(first), last + 1, _RANDOM_ROWS)
            rows = [*range(len(first)), *sorted({*drawn.tolist(), last})]
        else:
            rows = [0, last]
        known = dict(enumerate(first.tolist()))
        for row in rows:
            if row not in known:
                known[row] = self._value(ids[row], _row(labels, row), _row(outputs, row))
            expected, found = known[row], float(block[row])
            if np.isfinite(expected):
                self._largest = max(self._largest, abs(expected))
            if not _near(expected, found, self._largest):
                self._reason = f"{ids[row]}: {expected} when called alone, {found} in a block"
                self.note = (
                    f"{self.name}: computed one by one from row {self._num_rows + len(first)} on: "
                    f"{self._reason}"
                )
                return False
        return True

    def _value(self, data_id: Any, label: Any, output: Any) -> float:
        try:
            value = self._function(self._given(label), self._given(output))
        except ElasticDLError:
            raise
        except AttributeError as error:
            if self._given is not _as_it_is or not _asked_for_a_tensor(error):
                raise self._raised(data_id, error) from error
            from elasticdl.evaluation import tensorflow  # noqa: PLC0415 - as above

            self._given = tensorflow.as_tensors
            return self._value(data_id, label, output)
        except Exception as error:
            raise self._raised(data_id, error) from error
        return self._number(value, data_id)

    def _raised(self, data_id: Any, error: Exception) -> UserCodeError:
        return UserCodeError(
            f"{raised_at(error, where_is(self._function))}: the evaluation function "
            f"{self.name!r} raised on the example {data_id!r}:\n{users_traceback(error)}"
        )

    def _number(self, value: Any, data_id: Any) -> float:
        if value is None:
            return float("nan")
        # Most values are floats and need no further checks.
        if type(value) is float:
            self._wide = True
            return value
        if hasattr(value, "detach"):
            value = value.detach().cpu()
        array = np.asarray(value)
        if array.size != 1 or array.dtype.kind not in "fiubV":
            shape = f" of shape {list(array.shape)}" if array.ndim else ""
            raise DefinitionError(
                f"{where_is(self._function)}: the evaluation function {self.name!r} returned a "
                f"{type(value).__name__}{shape} for the example {data_id!r}. It receives one "
                "example, not a batch, and must return one number, or None or NaN if there is "
                "none."
            )
        self._wide |= array.dtype.name not in _NARROW
        return float(array.reshape(()).astype(np.float64))


_NARROW = frozenset({"float32", "float16", "bfloat16"})


def _as_it_is(value: Any) -> Any:
    return value


def _row(tree: Arrays, row: int) -> Any:
    # Nearly always a single array, for which `map_arrays` would be slow.
    return tree[row] if isinstance(tree, np.ndarray) else map_arrays(lambda a: a[row], tree)


def signature(labels: Any, outputs: Any) -> str:
    """Return the structure, dtypes and shapes of an example as a string.

    Rows with equal strings can be stacked in one block.
    """
    described = [
        map_arrays(lambda a: (a.dtype.str, a.shape[1:]), tree) for tree in (labels, outputs)
    ]
    return repr(described)


def _asked_for_a_tensor(error: AttributeError) -> bool:
    return (
        error.name == "numpy"
        and isinstance(error.obj, (np.ndarray, np.generic))
        and "tensorflow" in sys.modules
    )


def _near(expected: float, found: float, largest: float) -> bool:
    if not np.isfinite(expected) or not np.isfinite(found):
        return expected == found or (np.isnan(expected) and np.isnan(found))
    return abs(expected - found) <= _TOLERANCE * max(abs(expected), largest)
