"""Rows of a prediction: a key and one field per model output.

This module creates the keys and the names of the fields for every file format; `recordio.py`,
`csv.py` and `parquet.py` define how a row is stored.

Callers: `writers.py` and those three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.data.file_ranges import Numbering
from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.batch import Arrays
    from elasticdl.data.record_source import RecordFile

KEY = "key"
_ONLY_OUTPUT = "output"
_TWO = 2

Columns: TypeAlias = "Mapping[str, np.ndarray[Any, Any]]"
"""Output name -> array, one row per example; in the model's order. Missing values are masked."""


@dataclass(frozen=True)
class PredictionField:
    """Name, type and shape of one output, the same in every row.

    Attributes:
        name: Name of the output.
        dtype: Name of its numpy dtype, as the model returned it; `bytes` for strings.
        shape: Shape of the output for one example.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


def named_outputs(outputs: Arrays, num_examples: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return a model's outputs by the names under which they are written.

    A single output is named `output`, the outputs in a list `output_0`, `output_1`, ...; the
    outputs in a dict keep their names.

    Args:
        outputs: The outputs that the trainer's `predict` returned.
        num_examples: Required size of the first axis of each.

    Raises:
        DefinitionError: An output has another first axis or an invalid name, or two have the same
            name.

    Example:
        >>> sorted(named_outputs([np.zeros(3), np.ones((3, 2))], 3))
        ['output_0', 'output_1']
    """
    found: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in _named(outputs, ""):
        # A masked array is a column of the input, which may lack values.
        is_masked = isinstance(value, np.ma.MaskedArray)
        array: np.ndarray[Any, Any] = value if is_masked else np.asarray(value)
        if array.ndim == 0 or len(array) != num_examples:
            raise DefinitionError(
                f"The model's output {name!r} has shape {list(array.shape)} for {num_examples} "
                f"examples. {_rows_advice(array.shape, num_examples)}"
            )
        if name == KEY or name in found:
            raise DefinitionError(
                f"The model has an output named {name!r}, which is the name of "
                f"{'the column of record keys' if name == KEY else 'another output'}. "
                "Rename the layer that makes it."
            )
        if not _is_writable(array):
            raise DefinitionError(
                f"The model's output {name!r} is {array.dtype}; expected real numbers, strings or "
                "bytes. Convert it in the model."
            )
        found[name] = array
    return found


def outputs_without_axes(outputs: Arrays) -> list[str]:
    """Return the names of outputs that are one number for the whole batch, such as a penalty.

    Empty if every output is one number: then the model has probably summed over the examples.

    Args:
        outputs: The outputs that the trainer's `predict` returned.

    Example:
        >>> outputs_without_axes([np.zeros(3), np.float32(0.5)])
        ['output_1']
    """
    named = _named(outputs, "")
    found = [name for name, value in named if value is not None and np.ndim(value) == 0]
    return found if len(found) < len(named) else []


def rows_only(outputs: Arrays, left_out: Sequence[str]) -> Arrays:
    """Return the outputs except those named in `left_out`; the others keep their names."""
    if not left_out:
        return outputs
    return {name: value for name, value in _named(outputs, "") if name not in left_out}


def _rows_advice(shape: tuple[int, ...], num_examples: int) -> str:
    """Return advice for an output that does not have one row per example.

    For example, "Its first axis must be the example: do not sum or squeeze it away."
    """
    each = shape[0] // num_examples if shape else 0
    # An output of one axis, or for one example, has probably lost the axis of the example.
    if len(shape) == 1 or num_examples == 1 or each < _TWO or shape[0] % num_examples:
        return "Its first axis must be the example: do not sum or squeeze it away."
    rest = list(shape[1:])
    return (
        f"These are {each} rows for each example (several views of it, for instance), and "
        f"predictions have one. Let the model return the {each} rows of an example together, as "
        f"{[num_examples, each, *rest]}, or as a tuple of {each} outputs {[num_examples, *rest]}."
    )


def _named(tree: Arrays, prefix: str) -> list[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        items = [(f"{prefix}{name}", value) for name, value in tree.items()]
    elif isinstance(tree, (list, tuple)):
        items = [(f"{prefix or 'output_'}{i}", value) for i, value in enumerate(tree)]
    else:
        return [(prefix.removesuffix("_") or _ONLY_OUTPUT, tree)]
    return [leaf for name, value in items for leaf in _named(value, f"{name}_")]


def _is_writable(array: np.ndarray[Any, Any]) -> bool:
    if array.dtype.kind == "O":
        return all(isinstance(value, (str, bytes)) for value in np.ma.getdata(array).ravel())
    # Frameworks' own floats (bfloat16) are of kind V, as are records with named fields.
    return array.dtype.kind in "fiubmSUV" and array.dtype.names is None


def fields_of(columns: Columns) -> tuple[PredictionField, ...]:
    """Describe each column: its name, its dtype, and the shape of its value for one example."""
    return tuple(
        PredictionField(
            name, "bytes" if is_text(array) else array.dtype.name, tuple(array.shape[1:])
        )
        for name, array in columns.items()
    )


def is_text(array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array holds strings or byte strings."""
    return array.dtype.kind in "SUO"


def as_bytes(array: np.ndarray[Any, Any]) -> list[bytes]:
    """Return the values of an array of strings, encoded, in row order."""
    # tolist() of a fixed-width array would drop trailing zero bytes, as numpy always does.
    return [v.encode() if isinstance(v, str) else bytes(v) for v in array.ravel().tolist()]


def missing(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Return a mask that is true where values are missing; None if the array has no mask."""
    return np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else None


def plain_floats(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Convert values of types that file formats lack, and return others unchanged.

    bfloat16 and float8 become float32; durations become seconds.
    """
    if array.dtype.kind == "m":
        seconds: np.ndarray[Any, Any] = array / np.timedelta64(1, "s")
        return seconds
    return array if array.dtype.isbuiltin == 1 else array.astype(np.float32)


class RecordKeys:
    """Creates the keys of predictions; a key names the record's file and its number in the file.

    Created once per source, so that the cost of a batch does not depend on the number of files.

    Args:
        files: The files of the source, in reading order.

    Example:
        >>> from elasticdl.data.record_source import RecordFile
        >>> RecordKeys([RecordFile("d/x/a.csv", 2), RecordFile("d/y/a.csv", 3)]).between(1, 4)
        ['x/a.csv:1', 'y/a.csv:0', 'y/a.csv:1']
    """

    def __init__(self, files: Sequence[RecordFile]) -> None:
        self._numbering = Numbering(files)
        self._names = _relative([file.uri for file in files])

    def between(self, start: int, stop: int) -> list[str]:
        """Return the keys of some records.

        Args:
            start: First record, numbered over all files.
            stop: One past the last.

        Returns:
            `FILE:NUMBER` for each record: the file's path relative to the folder that all files
            share, and the record's number in it, from 0.

        Raises:
            IndexError: There are no such records.
        """
        return [
            f"{self._names[part.file_index]}:{number}"
            for part in self._numbering.split(start, stop)
            for number in range(part.start, part.stop)
        ]

    def files_between(self, start: int, stop: int) -> list[str]:
        """Return the URI of the file of each record, for evaluation reports.

        The records are given by a range, as for `between`.
        """
        return [
            self._numbering.files[part.file_index].uri
            for part in self._numbering.split(start, stop)
            for _ in range(part.start, part.stop)
        ]


def _relative(uris: Sequence[str]) -> list[str]:
    split = [uri.split("/") for uri in uris]
    shared = 0
    for parts in zip(*(folders[:-1] for folders in split), strict=False):
        if len(set(parts)) > 1:
            break
        shared += 1
    return ["/".join(parts[shared:]) for parts in split]
