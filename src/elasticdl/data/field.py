"""Fields of a record: their name, shape and dtype, and the conversion of values to these.

A value is accepted if it keeps its meaning: an int32 for an int64 field, 3.0 for an int64 field, a
Python float for a float32 field (rounded, as its dtype requires); but not 3.5 for an int64 field,
and not 300 for a uint8 field. `stored_field.py` stores the converted values in a `tf.Example`.

A wide field also accepts integers that do not fit its dtype: a floating dtype rounds them, a
string stores their digits.

A nullable field may lack a value in some records. A missing number is NaN, a missing string
None; a stored NaN also counts as missing.

Callers: `schema.py`, `stored_field.py`, `table.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as attribute
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl.data.wording import listed, shown
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import DefinitionError, SchemaError

if TYPE_CHECKING:
    from collections.abc import Callable

    Array: TypeAlias = np.ndarray[Any, Any]

STRING = np.dtype(object)
"""The dtype of a field of bytes or strings; a value is read as `bytes`."""

ANY_LENGTH = (-1,)
"""The shape of a field whose number of values differs from record to record."""

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_NUMBERS = ("bool", *_INTEGERS, "float16", "float32", "float64")
_LIMITS: dict[str, tuple[int, int]] = {"bool": (0, 1)} | {
    name: (int(np.iinfo(name).min), int(np.iinfo(name).max)) for name in _INTEGERS
}
MAX_EXACT = 2**53
"""Up to this number, float64 represents every integer exactly."""

_KEYS = ("name", "shape", "dtype")
_FLAGS = ("nullable", "time", "wide")
_AN_ENTRY = '{"name": "image", "shape": [28, 28], "dtype": "float32"}'


@dataclass(frozen=True)
class Field:
    """One field of a record.

    Attributes:
        name: Its name in the record.
        shape: Its shape; `()` is a single value, `ANY_LENGTH` a list whose length differs from
            record to record.
        dtype: A boolean, integer or floating dtype of numpy, or `STRING`.
        nullable: Whether a record may lack its value. A missing number is NaN, a missing string
            None.
        time: Whether it is a date or a time, in seconds since 1970-01-01 UTC; strings in a table
            are read as `table_times.py` describes.
        wide: Whether it accepts integers that do not fit its dtype. A floating dtype rounds them; a
            string stores their digits, `b"17"`.
        is_declared: Whether a user declared it in `data_schema()`, for error messages; otherwise
            it follows from the training data.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    nullable: bool = False
    time: bool = False
    wide: bool = False
    is_declared: bool = attribute(default=True, compare=False, repr=False)

    @property
    def size(self) -> int:
        """Number of values in a record, for a field that has the same number in all records."""
        return math.prod(self.shape)

    @property
    def varies(self) -> bool:
        """Whether the number of values differs from record to record."""
        return self.shape == ANY_LENGTH

    def requires(self, what: str) -> str:
        """Return words for an error that state a requirement and its source.

        These are `data_schema() says WHAT` if a user declared the field, else `the model needs
        WHAT`. `what` is the requirement, such as a shape or a dtype.
        """
        return f"{'data_schema() says' if self.is_declared else 'the model needs'} {what}"

    def advice(self, remedy: str, in_schema: str) -> str:
        """Return the last sentence of an error: what the user can do.

        An example is "Convert the column, or correct the dtype in data_schema().".

        Args:
            remedy: How to change the data: "Convert the column".
            in_schema: How to change `data_schema()` instead: "correct the dtype in data_schema()".
                Left out unless the user declared the field there.
        """
        return f"{remedy}, or {in_schema}." if self.is_declared else f"{remedy}."

    def entry(self) -> dict[str, Any]:
        """Return the entry of a `data_schema()` for this field, as plain JSON."""
        flags = {flag: True for flag in _FLAGS if getattr(self, flag)}
        shape = [None] if self.varies else list(self.shape)
        return {"name": self.name, "shape": shape, "dtype": self.dtype_name, **flags}

    def missing(self, num_records: int) -> Array:
        """Return an array of missing values (NaN, or None for strings) for a number of records.

        Its shape is `[records, *shape]`, or `[records, 0]` if the length varies.
        """
        shape = (num_records, 0) if self.varies else (num_records, *self.shape)
        fill = None if self.dtype == STRING else np.nan
        return np.full(shape, 0 if self.varies else fill, self.dtype)

    @property
    def dtype_name(self) -> str:
        """Name of the dtype: numpy's, or "string"."""
        return "string" if self.dtype == STRING else str(self.dtype.name)

    def __str__(self) -> str:
        """Return `name: dtype[shape]`."""
        shape = [None] if self.varies else list(self.shape)
        return f"{self.name}: {self.dtype_name}{shape}"

    @staticmethod
    def from_user(entry: Any, where: str) -> Field:
        """Return the field for one entry of a user's `data_schema()`.

        Args:
            entry: A dict with name, shape and dtype, and optionally `"nullable": True`,
                `"time": True` and `"wide": True`.
            where: The name of the entry, for an error message.

        Raises:
            DefinitionError: The entry is invalid.
        """
        if isinstance(entry, Field):
            return entry
        if not isinstance(entry, Mapping):
            raise DefinitionError(
                f"{where} is {shown(entry)}; expected a dict such as {_AN_ENTRY}."
            )
        for key in _KEYS:
            if key not in entry:
                near = did_you_mean(key, [str(other) for other in entry if other not in _KEYS])
                raise DefinitionError(
                    f"{where} has no {key!r}{f' (it has {listed(entry)})' * (near == '.')}{near} "
                    "A field needs "
                    f"name, shape and dtype: {_AN_ENTRY}."
                )
        for key in entry:
            if key not in (*_KEYS, *_FLAGS):
                raise DefinitionError(
                    f"{where} has an entry {key!r}; a field has name, shape, dtype, nullable, "
                    f"time and wide only{did_you_mean(str(key), _FLAGS)}"
                )
        name = entry["name"]
        if not isinstance(name, str) or not name:
            raise DefinitionError(f"{where}: name is {shown(name)}; expected a non-empty string.")
        where = f"{where} ({name!r})"
        nullable, time, wide = (_flag(entry, flag, where) for flag in _FLAGS)
        dtype = _dtype(entry["dtype"], where)
        field = Field(name, _shape(entry["shape"], where), dtype, nullable, time, wide)
        _check_flags(field, where)
        return field

    def values(self, value: Any, where: str) -> Array:
        """Convert a value of one record to an array of the field's shape and dtype.

        Only the array of a single value may have another shape, such as [1] instead of [].

        Args:
            value: An array of the field's shape, or a value that numpy converts to one; for a
                field of one value, any shape with one value.
            where: The field and the record, for an error message.

        Raises:
            SchemaError: The shape or the kind of the value is wrong, or the field's dtype would
                change a number.
        """
        # As objects: numpy's own arrays of bytes lose the zeros at the end of a value.
        wanted = STRING if self.dtype == STRING else None
        if self.nullable:
            if value is None:
                return self.missing(1)[0, ...]
            value = self._with_nan(value)
        try:
            array = value if isinstance(value, np.ndarray) else np.array(value, wanted)
        except ValueError:
            raise SchemaError(
                f"{where}: is {shown(value)}, whose parts have different lengths; "
                f"{self.requires(f'shape {list(self.shape)}')}."
            ) from None
        if self.dtype == STRING:
            self._check_shape(array, where)
            if self.wide and array.dtype.name in _NUMBERS:
                return digits(array)
            return self._as_bytes(array, where)
        if array.dtype == self.dtype and array.shape == self.shape:
            return array
        if array.dtype.name not in _NUMBERS:
            raise SchemaError(
                f"{where}: is {_described(array)}; {self.requires(self.dtype_name)}. Convert it to "
                "numbers first."
            )
        self._check_shape(array, where)
        return self.cast(array, lambda _: where)

    def cast(self, array: Array, where: Callable[[int], str]) -> Array:
        """Convert numbers to the field's dtype.

        Args:
            array: Numbers of any dtype, of one record or of many.
            where: Function (index of a number, in row order) -> its origin, for an error.

        Raises:
            SchemaError: The dtype cannot hold one of the numbers.
        """
        if self.wide and array.dtype.kind in "iu":
            return array.astype(self.dtype) if self.dtype != STRING else digits(array)
        at = first_changed(array, self.dtype)
        if at is not None:
            article = "an" if self.dtype.name.startswith("int") else "a"
            raise SchemaError(
                f"{where(at)}: holds {array.flat[at].item()}, which {article} {self.dtype.name} "
                f"cannot hold (the value is {array.dtype.name}). "
                + self.advice(
                    "Convert the value where it is made", "use another dtype in data_schema()"
                )
            )
        return array.astype(self.dtype, copy=False)

    def _as_bytes(self, array: Array, where: str) -> Array:
        values = np.empty(array.size, STRING)
        for i, item in enumerate(array.ravel().tolist()):
            if item is None and self.nullable:
                continue
            if not isinstance(item, (bytes, str)):
                raise SchemaError(f"{where}: holds {shown(item)}; {self.requires('string')}.")
            values[i] = item.encode() if isinstance(item, str) else item
        return values

    def _with_nan(self, value: Any) -> Any:
        """Replace None by NaN in the value of a field of numbers; the result is then a flat list.

        Values without None, and all values of a string field, are returned unchanged.
        """
        if self.dtype == STRING or not isinstance(value, (list, tuple, np.ndarray)):
            return value
        array = np.asarray(value) if isinstance(value, np.ndarray) else np.array(value, object)
        if array.dtype != object or not (array == None).any():  # noqa: E711 - value by value
            return value
        return [np.nan if item is None else item for item in array.ravel().tolist()]

    def _check_shape(self, array: Array, where: str) -> None:
        if array.shape == self.shape or array.size == self.size == 1:
            return
        if self.varies:
            if array.ndim <= 1:
                return
            raise SchemaError(
                f"{where}: has shape {list(array.shape)}; {self.requires('a list of any length')}."
            )
        advice = ""
        if array.size == self.size:
            advice = f" The number of values is right: use reshape({list(self.shape)})."
        raise SchemaError(
            f"{where}: has shape {list(array.shape)}; {self.requires(str(list(self.shape)))}."
            f"{advice}"
        )


def as_text(name: str) -> str:
    """Return advice to declare a field as text, because its column has text instead of numbers.

    It completes a sentence: 'give the field the dtype "string" in data_schema(), and turn ...'.

    Args:
        name: Name of the field.
    """
    return (
        'give the field the dtype "string" in data_schema(), and turn its text into numbers in the '
        "input function; for a label, name the classes in the model file, classes = [...], and "
        f"return classes.index(record[{name!r}].item().decode())"
    )


def digits(array: Array) -> Array:
    """Convert numbers to their decimal digits, as bytes; integral ones lack a decimal point.

    NaN becomes None.

    Example:
        >>> digits(np.array([17.0, 0.5, np.nan]))
        array([b'17', b'0.5', None], dtype=object)
    """
    found = np.empty(array.shape, STRING)
    for i, value in enumerate(array.ravel().tolist()):
        if isinstance(value, float) and math.isnan(value):
            continue
        is_whole = not isinstance(value, float) or value.is_integer()
        found.flat[i] = str(int(value) if is_whole else value).encode()
    return found


def first_changed(array: Array, dtype: np.dtype[Any]) -> int | None:
    """Return the index (in row order) of the first number that converting to `dtype` would change.

    Rounding from one floating dtype to a shorter one is not a change; becoming infinite is. The
    result is None if no number would change.
    """
    # numpy considers casting 64-bit integers to float64 safe, although it rounds them.
    rounds = array.dtype.kind in "iu" and array.dtype.itemsize == dtype.itemsize
    if not array.size or (np.can_cast(array.dtype, dtype, "safe") and not rounds):
        return None
    if array.dtype.kind in "biu" and dtype.kind in "biu":
        lowest, highest = _LIMITS[dtype.name]
        if lowest <= array.min().item() and array.max().item() <= highest:
            return None
        return next(i for i, n in enumerate(array.ravel().tolist()) if not lowest <= n <= highest)
    if array.dtype.kind == dtype.kind == "f" and abs(array).max() <= np.finfo(dtype).max:
        return None
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if array.dtype.kind == "f" and dtype.kind == "f":
            changed = np.isinf(cast) & ~np.isinf(array)
        else:
            # Python compares integers and floats exactly; numpy would round the integers first.
            changed = np.asarray(cast.astype(object) != array.astype(object))
    return int(changed.argmax()) if changed.any() else None


def _check_flags(field: Field, where: str) -> None:
    dtype = field.dtype
    if field.nullable and dtype.kind != "f" and dtype != STRING:
        raise DefinitionError(
            f"{where}: it is nullable, but its dtype {dtype.name} cannot represent a missing "
            "value. Use float32 or float64, where it is NaN, or string, where it is None."
        )
    if field.time and dtype.name not in ("float64", "int64"):
        raise DefinitionError(
            f"{where}: it is a time, but its dtype is {'string' if dtype == STRING else dtype}; "
            "expected float64 or int64: seconds since 1970-01-01 UTC."
        )
    if field.wide and dtype.kind != "f" and dtype != STRING:
        raise DefinitionError(
            f"{where}: it is wide, but its dtype is {dtype.name}; expected a floating dtype, which "
            "rounds whole numbers, or string, which keeps all digits."
        )


def _flag(entry: Mapping[str, Any], flag: str, where: str) -> bool:
    value = entry.get(flag, False)
    if not isinstance(value, bool):
        raise DefinitionError(f"{where}: {flag} is {shown(value)}; expected True or False.")
    return value


def _shape(value: Any, where: str) -> tuple[int, ...]:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        value = (value,)
    if isinstance(value, (list, tuple)) and list(value) == [None]:
        return ANY_LENGTH
    try:
        # Not int(): a shape of 2.5 or "3" is a mistake.
        shape = tuple(side.__index__() for side in value)
    except (AttributeError, TypeError, ValueError):
        shape = (0,)
    if isinstance(value, (str, bytes)) or any(side < 1 for side in shape):
        raise DefinitionError(
            f"{where}: shape is {shown(value)}; expected a list of numbers above 0, such as [28, "
            "28], [] for a single value, or [None] for a list of any length. Any other shape must "
            "be the same for all records: pad values of different lengths."
        )
    return shape


def _dtype(value: Any, where: str) -> np.dtype[Any]:
    # A tf.DType knows its numpy counterpart, so that TensorFlow need not be imported.
    named = getattr(value, "as_numpy_dtype", value)
    dtype: np.dtype[Any] | None
    try:
        dtype = STRING if named in ("string", "bytes") else np.dtype(named)
    except TypeError:
        dtype = None
    if dtype is not None and dtype.kind in "SUO":
        return STRING
    if value is None or dtype is None or dtype.name not in _NUMBERS:
        given = f"tf.{value.name}" if hasattr(value, "as_numpy_dtype") else shown(value)
        raise DefinitionError(
            f"{where}: dtype is {given}; expected one of {', '.join(_NUMBERS)} or string, as a "
            'name ("float32"), a numpy dtype (np.float32) or a TensorFlow dtype (tf.float32).'
        )
    return dtype.newbyteorder("=")


def _described(array: Array) -> str:
    kind = {"S": "text", "U": "text", "O": "no number"}.get(array.dtype.kind, array.dtype.name)
    first = array.ravel()[0].item() if array.dtype.kind != "O" and array.size else array.tolist()
    return f"{kind} ({shown(first)})"
