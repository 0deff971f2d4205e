"""Data handlers: a party's own class that reads its data, with `get_data()`.

    class MyDataHandler:
        def __init__(self, data_config): ...
        def get_data(self): return (x_train, y_train), (x_test, y_test)

`data_config` is `data.info` of the party's config. Only the party's config names the class, so it
runs only there. Each row becomes a record with the fields `x` and `y`, so that any model can train
on it.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.arrays import ArraySource
from elasticdl.errors import DataError, DefinitionError, UserCodeError, raised_at, users_traceback

if TYPE_CHECKING:
    from elasticdl.data.record_source import RecordSource
    from elasticdl.engines.federated.config.reading import DataHandler

_NUM_SPLITS = 2


def source_of(handler: DataHandler) -> Callable[[str], RecordSource]:
    """Return a function that opens the training or test data of a user's data handler.

    The errors below are raised by the returned function, not by this one: the user's class is
    imported and called only when training or test data are first opened.

    Args:
        handler: Name and file of the user's class, and the argument for its constructor.

    Returns:
        Function (name of the data) -> records: the training data if the name ends with
        ": training", otherwise the test data.

    Raises:
        DefinitionError: The file has no such class.
        UserCodeError: The class raised an exception.
        DataError: `get_data()` did not return two pairs of arrays.
    """

    @functools.cache
    def splits() -> tuple[Any, Any]:
        return _asked(handler)

    def open_source(name: str) -> RecordSource:
        x, y = splits()[0 if name.endswith(": training") else 1]
        return ArraySource({"x": x, "y": y}, name)

    return open_source


def _asked(handler: DataHandler) -> tuple[Any, Any]:
    made = _class_of(handler)
    try:
        found = made(dict(handler.info)).get_data()
    except Exception as error:
        raise UserCodeError(
            f"{raised_at(error, handler.file)}: {handler.name}.get_data() raised:\n"
            f"{users_traceback(error)}"
        ) from error
    try:
        pairs = tuple((np.asarray(x), np.asarray(y)) for x, y in found)
    except (TypeError, ValueError):
        pairs = ()
    if len(pairs) != _NUM_SPLITS:
        raise DataError(
            f"{handler.file}: {handler.name}.get_data() returned {type(found).__name__}; expected "
            "((x_train, y_train), (x_test, y_test))."
        )
    return pairs[0], pairs[1]


def _class_of(handler: DataHandler) -> Any:
    spec = importlib.util.spec_from_file_location(handler.file.stem, handler.file)
    if spec is None or spec.loader is None:
        raise DefinitionError(f"{handler.file} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    folder = str(handler.file.parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UserCodeError(
            f"{handler.file} raised an error while it was imported:\n{users_traceback(error)}"
        ) from error
    finally:
        sys.path.remove(folder)
    if not hasattr(module, handler.name):
        there = ", ".join(name for name in vars(module) if not name.startswith("_"))
        raise DefinitionError(
            f"{handler.file} has no class {handler.name!r}; it has {there or 'nothing'}."
        )
    return getattr(module, handler.name)
