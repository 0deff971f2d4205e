"""Shared parts of the table models: rows become numbers and tokens, and a network reads them.

A row is a record without a schema: field name -> 1-D array. Every field but the label is a feature.
Numbers keep their value and are standardised by the network itself, from its training data. Strings
are hashed to buckets, so that no vocabulary is needed beforehand and a word not seen in training is
not an error. Nothing here depends on what is predicted.

    age 31.0, salary 70e3, role b"clerk"
      -> {"numbers": [31.0, 70e3], "tokens": [417]}

Not a model: `elasticdl zoo list` skips this file.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from elasticdl.data.wording import as_option
from elasticdl.definition import Mode
from elasticdl.did_you_mean import nearest
from elasticdl.errors import SchemaError
from elasticdl.training.input_words import images_of_two_sizes
from elasticdl.zoo.prebuilt.standardise import Standardise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.data.batch import Record

NUM_BUCKETS = 1024


def features_and_label(
    records: Sequence[Record], mode: Mode, *, label: str, ignore: Sequence[str] = ()
) -> tuple[dict[str, np.ndarray[Any, Any]], np.ndarray[Any, Any] | None]:
    """Split rows into features and the label.

    Fields are taken in the order of their names, which is the same on every worker.

    Args:
        records: The rows of one batch; each must have the fields of the first.
        mode: For predictions, the label may be missing, and is ignored if present.
        label: Name of the field to learn.
        ignore: Names of fields that are not features, such as an identifier.

    Returns:
        The features, `numbers` as float32 [batch, values] and `tokens` as int32 [batch, string
        fields], each only if there are such fields; and the label as an array [batch, values], None
        for predictions.

    Raises:
        SchemaError: A row lacks a field, the label is missing, or nothing is left to learn from.

    Example:
        >>> rows = [{"age": np.array([31.0]), "role": np.array([b"clerk"]), "pay": np.array([7])}]
        >>> features, pay = features_and_label(rows, Mode.TRAINING, label="pay")
        >>> features["numbers"].tolist(), features["tokens"].shape, pay.tolist()
        ([[31.0]], (1, 1), [[7]])
    """
    fields = sorted(records[0])
    if mode != Mode.PREDICTION and label not in fields:
        raise SchemaError(
            f"The records have no field {label!r}, the label; they have "
            f"{', '.join(fields)}{_how_to_name(label, fields)}"
        )
    names = [name for name in fields if name != label and name not in set(ignore)]
    columns = {name: _column(records, name) for name in names}
    numbers = [column for column in columns.values() if column.dtype.kind in "biuf"]
    tokens = [
        _buckets(name, column) for name, column in columns.items() if column.dtype.kind in "OSU"
    ]
    features = {}
    if numbers:
        features["numbers"] = np.concatenate(numbers, axis=1, dtype=np.float32, casting="unsafe")
    if tokens:
        features["tokens"] = np.concatenate(tokens, axis=1)
    if not features:
        raise SchemaError(
            f"The records have no features to learn {label!r} from; their fields are "
            f"{', '.join(fields)}. Add a field of numbers or text."
        )
    return features, None if mode == Mode.PREDICTION else _column(records, label)


def _how_to_name(label: str, fields: Sequence[str]) -> str:
    """Return a phrase that completes an error about a missing label.

    For example, "; did you mean 'pay'? Specify the right one: --params=...".
    """
    near = nearest(label, fields)
    guess = "." if near is None else f"; did you mean {near!r}?"
    return f"{guess} Specify the right one: {as_option('label', near or 'NAME')}"


def _column(records: Sequence[Record], name: str) -> np.ndarray[Any, Any]:
    """Return one field of all rows as an array [batch, values]."""
    try:
        return np.stack([np.ravel(record[name]) for record in records])
    except KeyError:
        number = next(number for number, record in enumerate(records) if name not in record)
        raise SchemaError(
            f"Row {number} of a batch has no field {name!r}, which row 0 has. Every row needs "
            f"the same fields; leave this one out everywhere with {as_option('ignore', [name])}"
        ) from None
    except ValueError:
        if images_of_two_sizes(records) is not None:
            raise SchemaError(
                "The data are images of different sizes, and this is a model for tables. For "
                "images, use a model file of your own, or --model_def=cifar10, which needs "
                "thousands."
            ) from None
        sizes = sorted({np.size(record[name]) for record in records})
        raise SchemaError(
            f"Field {name!r} has {' or '.join(map(str, sizes))} values in the rows of one batch. "
            "A table needs the same number in every row; leave the field out with "
            f"{as_option('ignore', [name])}"
        ) from None


def _buckets(name: str, column: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a bucket number for every string: a hash of the string and the field's name."""
    salt = zlib.crc32(name.encode())
    hashed = [
        zlib.crc32(text if isinstance(text, bytes) else str(text).encode(), salt)
        for text in column.ravel().tolist()
    ]
    return (np.array(hashed, np.int64) % NUM_BUCKETS).astype(np.int32).reshape(column.shape)


# In a narrow network, all units of a layer with ReLU may end up at 0, where they learn nothing.
ACTIVATION = "leaky_relu"


class Tower(keras.layers.Layer):
    """Hidden layers of a dense network on numbers and tokens (hashed strings), as one layer.

    The number of features is determined at the first call.

    Args:
        hidden_units: Width of each hidden layer, the first one first.
        embedding_size: Length of the trained vector that represents a token.
    """

    def __init__(self, hidden_units: Sequence[int], embedding_size: int) -> None:
        super().__init__(name="tower")
        self._standardise = Standardise(name="standardise")
        self._embed = keras.layers.Embedding(NUM_BUCKETS, embedding_size, name="embed")
        self._flatten = keras.layers.Flatten()
        self._hidden = [
            keras.layers.Dense(units, activation=ACTIVATION, name=f"hidden_{number}")
            for number, units in enumerate(hidden_units)
        ]

    def build(self, input_shape: Mapping[str, tuple[int | None, ...]]) -> None:
        """Create the weights for features of these shapes."""
        size = 0
        if "numbers" in input_shape:
            self._standardise.build(input_shape["numbers"])
            size += int(input_shape["numbers"][-1] or 0)
        if "tokens" in input_shape:
            self._embed.build(input_shape["tokens"])
            size += int(input_shape["tokens"][-1] or 0) * self._embed.output_dim
        for layer in self._hidden:
            layer.build((None, size))
            size = layer.units
        self.built = True

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> Any:
        """Return the last hidden layer, [batch, units]."""
        parts = []
        if "numbers" in inputs:
            parts.append(self._standardise(inputs["numbers"], training=training))
        if "tokens" in inputs:
            parts.append(self._flatten(self._embed(inputs["tokens"])))
        x = parts[0] if len(parts) == 1 else keras.ops.concatenate(parts, axis=-1)
        for layer in self._hidden:
            x = layer(x)
        return x
