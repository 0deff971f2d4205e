"""Functions of a COLUMN clause, translated to features of the prebuilt table models.

    age                                a feature derived from the column's type and values
    DENSE(f [, size [, delimiter]])    numbers: one, an array, or a string such as '1,2,3'
    SPARSE(f, size [, delimiter])      string of indices '0 3' or of pairs '0:1.5 3:2'
    CATEGORY_ID(f [, size])            a category: the `size` most frequent values
    CATEGORY_HASH(f, buckets)          a category, hashed
    SEQ_CATEGORY_ID(f, buckets [, delimiter])   a list of categories, hashed
    BUCKET(x, [boundary, ...])         the interval that a number lies in
    CROSS([a, b, ...], buckets)        a combination of categories, hashed
    EMBEDDING(x, dimension [, combiner])        a category as a trainable vector
    INDICATOR(x)                       a category as a one-hot vector

The functions are those of SQLFlow's language guide, section "Column clause"
(https://github.com/sql-machine-learning/sqlflow/blob/develop/doc/language_guide.md). If a feature
depends on the values of its column, for example on their vocabulary, it has an entry `derive`.
`features.py` replaces this entry after the rows have been read.

Used by `check.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from elasticdl.did_you_mean import did_you_mean
from elasticdl.sql.names import matching
from elasticdl.sql.statements import Argument, Call, Span, StatementError, Value, Word

FUNCTIONS = (
    "DENSE",
    "SPARSE",
    "CATEGORY_ID",
    "CATEGORY_HASH",
    "SEQ_CATEGORY_ID",
    "BUCKET",
    "CROSS",
    "EMBEDDING",
    "INDICATOR",
)
_COMPOSED = ("BUCKET", "CROSS", "EMBEDDING", "INDICATOR")
_COMBINERS = ("mean", "sum", "sqrtn")
_FORMS = {
    "DENSE": "DENSE(column, size, delimiter)",
    "SPARSE": "SPARSE(column, size, delimiter)",
    "CATEGORY_ID": "CATEGORY_ID(column, size)",
    "CATEGORY_HASH": "CATEGORY_HASH(column, buckets)",
    "SEQ_CATEGORY_ID": "SEQ_CATEGORY_ID(column, buckets, delimiter)",
    "BUCKET": "BUCKET(column, [10, 20, 30])",
    "CROSS": "CROSS([column, column], buckets)",
    "EMBEDDING": "EMBEDDING(column, 8, 'mean')",
    "INDICATOR": "INDICATOR(column)",
}


def features_of(
    arguments: Sequence[Argument], names: Collection[str], program: str, label: str | None = None
) -> list[dict[str, Any]]:
    """Convert a COLUMN clause to the features that it describes.

    Args:
        arguments: The clause.
        names: The columns of the SELECT.
        program: The whole program, for errors.
        label: The column to predict, which is not allowed as a feature.

    Returns:
        The features, in the form of the table models' parameter `columns`. If a feature depends on
        the column's values, an entry `derive` stands for what `features.resolve` computes later.

    Raises:
        StatementError: A function or a column is unknown, or an argument is invalid.
    """
    reader = _Reader(names, program, label)
    return [reader.feature(argument) for argument in arguments]


class _Reader:
    def __init__(self, names: Collection[str], program: str, label: str | None) -> None:
        self._names, self._program, self._label = names, program, label

    def feature(self, argument: Argument) -> dict[str, Any]:
        """Convert one entry of the clause, such as `age` or `EMBEDDING(role, 8)`, to a feature."""
        if isinstance(argument, Word):
            return {"derive": {}, "column": self._column(argument)}
        if isinstance(argument, Value) and isinstance(argument.value, str):
            return self.feature(Word(argument.value, argument.span))
        if isinstance(argument, Call):
            return self._call(argument)
        raise StatementError(
            "Expected a column, or a function of one such as EMBEDDING(role, 8).",
            self._program,
            _span(argument),
        )

    def _call(self, call: Call) -> dict[str, Any]:
        if call.function not in FUNCTIONS:
            raise StatementError(
                f"There is no function {call.function}{did_you_mean(call.function, FUNCTIONS)} "
                f"There are: {', '.join(FUNCTIONS)}.",
                self._program,
                call.span,
            )
        if call.function in _COMPOSED:
            return self._composed(call)
        given = call.arguments
        match call.function:
            case "DENSE":
                self._count(call, 1, 3)
                return {
                    "kind": "number",
                    "column": self._column(given[0]),
                    **self._optional(call, 1, "size", self._size),
                    **self._optional(call, 2, "delimiter", self._text),
                }
            case "SPARSE":
                self._count(call, 2, 3)
                return {
                    "kind": "sparse",
                    "column": self._column(given[0]),
                    "size": self._size(given[1]),
                    **self._optional(call, 2, "delimiter", self._text),
                }
            case "CATEGORY_ID":
                self._count(call, 1, 2)
                most = self._optional(call, 1, "size", self._size)
                return {"kind": "category", "column": self._column(given[0]), "derive": most}
            case "CATEGORY_HASH":
                self._count(call, 2, 2)
                buckets = self._size(given[1])
                return {"kind": "category", "column": self._column(given[0]), "buckets": buckets}
            case _:
                self._count(call, 2, 3)
                return {
                    "kind": "sequence",
                    "column": self._column(given[0]),
                    "buckets": self._size(given[1]),
                    **self._optional(call, 2, "delimiter", self._text),
                }

    def _composed(self, call: Call) -> dict[str, Any]:
        given = call.arguments
        match call.function:
            case "BUCKET":
                self._count(call, 2, 2)
                number = self._of(given[0], "number")
                return {"kind": "bucket", "of": number, "boundaries": self._boundaries(given[1])}
            case "CROSS":
                self._count(call, 2, 2)
                return {
                    "kind": "cross",
                    "of": [self._of(each, "category") for each in self._several(given[0])],
                    "buckets": self._size(given[1]),
                }
            case "EMBEDDING":
                self._count(call, 2, 3)
                return {
                    "kind": "embedding",
                    "of": self._of(given[0], "category"),
                    "dimension": self._size(given[1]),
                    **self._optional(call, 2, "combiner", self._combiner),
                }
            case _:
                self._count(call, 1, 1)
                return {"kind": "indicator", "of": self._of(given[0], "category")}

    def _of(self, argument: Argument, kind: str) -> dict[str, Any]:
        """Convert an argument of a function to a feature, such as `role` in `EMBEDDING(role, 8)`.

        Args:
            argument: A column or a further function.
            kind: "category" or "number": how the function reads the argument if it is a column. A
                further function determines the kind itself.
        """
        if isinstance(argument, Word):
            column = self._column(argument)
            derive: dict[str, Any] = {} if kind == "number" else {"derive": {}}
            return {"kind": kind, "column": column, **derive}
        return self.feature(argument)

    def _count(self, call: Call, least: int, most: int) -> None:
        if not least <= len(call.arguments) <= most:
            raise StatementError(
                f"{call.function} takes {least if least == most else f'{least} to {most}'} "
                f"arguments, {_FORMS[call.function]}; found {len(call.arguments)}.",
                self._program,
                call.span,
            )

    def _column(self, argument: Argument) -> str:
        name = argument.value if isinstance(argument, Value) else argument
        name = name.text if isinstance(name, Word) else name
        if not isinstance(name, str):
            raise StatementError("Expected the name of a column.", self._program, _span(argument))
        found = matching(name, self._names)
        if found is None:
            raise StatementError(
                f"The SELECT has no column {name!r}{did_you_mean(name, self._names)} It has: "
                f"{', '.join(self._names)}.",
                self._program,
                _span(argument),
            )
        if found == self._label:
            raise StatementError(
                f"{found!r} is the label, so it cannot be a feature. Leave it out of COLUMN, or "
                "choose another label.",
                self._program,
                _span(argument),
            )
        return found

    def _optional(self, call: Call, index: int, name: str, read: Any) -> dict[str, Any]:
        return {name: read(call.arguments[index])} if index < len(call.arguments) else {}

    def _size(self, argument: Argument) -> int:
        number = argument.value if isinstance(argument, Value) else None
        if isinstance(number, int) and not isinstance(number, bool) and number >= 1:
            return number
        raise StatementError("Expected a whole number, at least 1.", self._program, _span(argument))

    def _text(self, argument: Argument) -> str:
        text = argument.value if isinstance(argument, Value) else None
        if isinstance(text, str) and text:
            return {"comma": ","}.get(text.lower(), text)
        # SQLFlow's syntax has a bare COMMA for this.
        if isinstance(argument, Word) and argument.text.upper() == "COMMA":
            return ","
        raise StatementError(
            "Expected a delimiter in quotes, such as ','.", self._program, _span(argument)
        )

    def _combiner(self, argument: Argument) -> str:
        found = argument.text if isinstance(argument, Word) else getattr(argument, "value", None)
        if isinstance(found, str) and found.lower() in _COMBINERS:
            return found.lower()
        raise StatementError(
            f"Expected one of {', '.join(_COMBINERS)}.", self._program, _span(argument)
        )

    def _boundaries(self, argument: Argument) -> list[float]:
        values = [each.value for each in self._several(argument) if isinstance(each, Value)]
        numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if (
            not numbers
            or len(numbers) != len(self._several(argument))
            or numbers != sorted(set(numbers))
        ):
            raise StatementError(
                "Expected increasing numbers, such as [10, 20, 30].", self._program, _span(argument)
            )
        return numbers

    def _several(self, argument: Argument) -> Sequence[Argument]:
        if isinstance(argument, (Word, Value, Call)):
            raise StatementError("Expected a list in brackets.", self._program, _span(argument))
        return argument


def _span(argument: Argument) -> Span:
    if isinstance(argument, (Word, Value, Call)):
        return argument.span
    parts = [_span(each) for each in argument]
    return Span(parts[0].start, parts[-1].stop) if parts else Span(0, 1)
