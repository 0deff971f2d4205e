"""Layers for the features of `columns.py`; Keras layers are used where they exist.

    arrays of `Columns.arrays`  --ColumnTower--> the last hidden layer of a network
                                --ColumnWide---> weighted sums of single values

The layers take only numbers, no strings, and run inside a compiled step.

Not a model: `elasticdl zoo list` skips this file.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, TypeAlias

import keras

from elasticdl.zoo.prebuilt.column_kinds import (
    Bucket,
    Category,
    Cross,
    Embedding,
    IdSequence,
    Indicator,
    Number,
    Sparse,
    Time,
)
from elasticdl.zoo.prebuilt.columns import IDS, MISSING, NUMBERS, PLAIN
from elasticdl.zoo.prebuilt.standardise import Standardise
from elasticdl.zoo.prebuilt.tabular import ACTIVATION, NUM_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.zoo.prebuilt.columns import Columns

    Inputs: TypeAlias = Mapping[str, Any]
    Shapes: TypeAlias = Mapping[str, tuple[int | None, ...]]


class IdsOf(keras.layers.Layer):
    """Layer that returns the ids of a category, sequence, bucket or cross from a model's inputs.

    Args:
        feature: The category, sequence, bucket or cross.
        columns: All features of the model, which determine where the inputs have the values.
    """

    def __init__(self, feature: Any, columns: Columns) -> None:
        super().__init__()
        self._feature = feature
        self._place = 0
        self._parts: list[IdsOf] = []
        if isinstance(feature, Category):
            self._place = _places(columns)[feature]
        elif isinstance(feature, Bucket):
            self._place = _places(columns)[feature.of]
            self._intervals = keras.layers.Discretization(list(feature.boundaries))
        elif isinstance(feature, Cross):
            self._parts = [IdsOf(part, columns) for part in feature.of]
            self._crossing = keras.layers.HashedCrossing(feature.buckets)

    def build(self, input_shape: Shapes) -> None:
        """Mark the layer as built: it has no weights to create."""
        del input_shape
        self.built = True

    def call(self, inputs: Inputs) -> Any:
        """Return the ids: int [batch, 1], or [batch, longest] for a sequence."""
        feature, place = self._feature, self._place
        if isinstance(feature, IdSequence):
            return inputs[feature.input_name]
        if isinstance(feature, Category):
            return inputs[IDS][:, place : place + 1]
        if isinstance(feature, Bucket):
            missing = inputs[MISSING][:, place : place + 1] > 0
            found = self._intervals(inputs[NUMBERS][:, place : place + 1])
            return keras.ops.where(missing, feature.num_ids - 1, keras.ops.cast(found, "int32"))
        parts = [keras.ops.cast(part(inputs), "int64") for part in self._parts]
        return self._crossing(tuple(parts))


class IdVector(keras.layers.Layer):
    """Layer that encodes ids for a network: as indicators (one-hot), or as trained vectors.

    Args:
        feature: An indicator or an embedding.
        columns: The features of the model.
        initializer: Initializer of the vectors.
    """

    def __init__(
        self, feature: Indicator | Embedding, columns: Columns, initializer: str = "uniform"
    ) -> None:
        super().__init__()
        self._feature = feature
        self._is_sequence = isinstance(feature.of, IdSequence)
        self._ids = IdsOf(feature.of, columns)
        num_ids = feature.of.num_ids
        if isinstance(feature, Indicator):
            mode = "multi_hot" if self._is_sequence else "one_hot"
            self._encode = keras.layers.CategoryEncoding(num_ids, output_mode=mode)
            # The last id of a sequence is its padding.
            self.width = num_ids - 1 if self._is_sequence else num_ids
        else:
            self._embed = keras.layers.Embedding(
                num_ids, feature.dimension, embeddings_initializer=initializer, name="embed"
            )
            self.width = feature.dimension

    def build(self, input_shape: Shapes) -> None:
        """Create the trained vectors, if the feature is an embedding."""
        del input_shape
        if isinstance(self._feature, Embedding):
            self._embed.build((None, 1))
        self.built = True

    def call(self, inputs: Inputs) -> Any:
        """Return the encoded ids, float32 [batch, width]; those of a sequence are combined."""
        feature, ids = self._feature, self._ids(inputs)
        if isinstance(feature, Indicator):
            encoded = keras.ops.cast(self._encode(ids), "float32")
            return encoded[:, : self.width]
        vectors = self._embed(ids)
        if not isinstance(feature.of, IdSequence):
            return vectors[:, 0, :]
        given = keras.ops.cast(ids != feature.of.padding, "float32")
        total = keras.ops.sum(vectors * given[:, :, None], axis=1)
        if feature.combiner == "sum":
            return total
        count = keras.ops.maximum(keras.ops.sum(given, axis=1, keepdims=True), 1.0)
        return total / (count if feature.combiner == "mean" else keras.ops.sqrt(count))


class ColumnValues(keras.layers.Layer):
    """Layer that concatenates the inputs of a network that are not ids.

    These are standardised numbers and times, flags for missing ones, positions within the cycles of
    times, and sparse vectors.

    Args:
        columns: The features of the model.
    """

    def __init__(self, columns: Columns) -> None:
        super().__init__()
        places, plain = _places(columns), _plain_places(columns)
        self._numbers: tuple[int, ...] = ()
        self._missing: tuple[int, ...] = ()
        self._plain: tuple[int, ...] = ()
        for feature in columns.features:
            if isinstance(feature, (Number, Time)):
                here = tuple(range(places[feature], places[feature] + feature.size))
                self._numbers += here
                self._missing += here if feature.nullable else ()
            if isinstance(feature, (Time, Sparse)):
                self._plain += tuple(plain[feature])
        self._standardise = Standardise(name="standardise")
        self.width = len(self._numbers) + len(self._missing) + len(self._plain)

    def build(self, input_shape: Shapes) -> None:
        """Create the non-trainable weights from which mean and variance of numbers are computed.

        These are count, sum and sum of squares of each number; none if there are no numbers.
        """
        del input_shape
        if self._numbers:
            self._standardise.build((None, len(self._numbers)))
        self.built = True

    def call(self, inputs: Inputs, training: bool | None = None) -> Any:
        """Return the network's inputs other than ids, [batch, width]; None if there are none."""
        parts = []
        if self._numbers:
            numbers = keras.ops.take(inputs[NUMBERS], self._numbers, axis=1)
            missing = keras.ops.take(inputs[MISSING], self._numbers, axis=1)
            parts.append(self._standardise(numbers, missing, training=training))
        if self._missing:
            parts.append(keras.ops.take(inputs[MISSING], self._missing, axis=1))
        if self._plain:
            parts.append(keras.ops.take(inputs[PLAIN], self._plain, axis=1))
        return _joined(parts)


class ColumnTower(keras.layers.Layer):
    """Hidden layers of a dense network on the features of `columns`, as one layer.

    Args:
        columns: The features.
        hidden_units: Width of each hidden layer, the first one first.
        embedding_size: Length of the trained vectors of a feature whose entry does not set it.
    """

    def __init__(self, columns: Columns, hidden_units: Sequence[int], embedding_size: int) -> None:
        super().__init__(name="tower")
        self._values = ColumnValues(columns)
        self._vectors = [
            IdVector(_with_vectors(feature, embedding_size), columns)
            for feature in columns.features
            if not isinstance(feature, (Number, Time, Sparse))
        ]
        self._hidden = [
            keras.layers.Dense(units, activation=ACTIVATION, name=f"hidden_{number}")
            for number, units in enumerate(hidden_units)
        ]

    def build(self, input_shape: Shapes) -> None:
        """Create the weights."""
        self._values.build(input_shape)
        for vector in self._vectors:
            vector.build(input_shape)
        size = self._values.width + sum(vector.width for vector in self._vectors)
        for layer in self._hidden:
            layer.build((None, size))
            size = layer.units
        self.built = True

    def call(self, inputs: Inputs, training: bool | None = None) -> Any:
        """Return the last hidden layer, [batch, units]."""
        parts = [vector(inputs) for vector in self._vectors]
        if self._values.width:
            parts.insert(0, self._values(inputs, training=training))
        x = _joined(parts)
        for layer in self._hidden:
            x = layer(x)
        return x


class ColumnWide(keras.layers.Layer):
    """Layer of weighted sums of the features of `columns` and of pairs of their ids.

    It is the linear part of the `wide_and_deep` models.

    Args:
        columns: The features.
        num_outputs: Number of weighted sums.
    """

    def __init__(self, columns: Columns, num_outputs: int) -> None:
        super().__init__(name="wide")
        self._values = ColumnValues(columns)
        self._numbers = keras.layers.Dense(num_outputs, use_bias=False, name="numbers")
        of = {
            feature.of if isinstance(feature, (Indicator, Embedding)) else feature: None
            for feature in columns.features
            if not isinstance(feature, (Number, Time, Sparse))
        }
        # Zeros: a value that was never seen in training must add nothing.
        self._weights = [IdVector(Embedding(each, num_outputs), columns, "zeros") for each in of]
        self._ids = [IdsOf(each, columns) for each in of if isinstance(each, (Category, Bucket))]
        self._pairs = keras.layers.Embedding(
            NUM_BUCKETS, num_outputs, embeddings_initializer="zeros", name="pairs"
        )

    def build(self, input_shape: Shapes) -> None:
        """Create the weights."""
        self._values.build(input_shape)
        if self._values.width:
            self._numbers.build((None, self._values.width))
        for weight in self._weights:
            weight.build(input_shape)
        if len(self._ids) > 1:
            self._pairs.build((None, 1))
        self.built = True

    def call(self, inputs: Inputs, training: bool | None = None) -> Any:
        """Return the weighted sums, [batch, num_outputs]."""
        total: Any = 0.0
        if self._values.width:
            total = total + self._numbers(self._values(inputs, training=training))
        for weight in self._weights:
            total = total + weight(inputs)
        ids = [keras.ops.cast(each(inputs), "int64") for each in self._ids]
        pairs = [
            # Primes, so that (a, b), (b, a) and other pairs fall into different buckets.
            (first * 7919 + second * 104729 + number * 1299709) % NUM_BUCKETS
            for number, (first, second) in enumerate(itertools.combinations(ids, 2))
        ]
        if pairs:
            weights = self._pairs(keras.ops.concatenate(pairs, axis=1))
            total = total + keras.ops.sum(weights, axis=1)
        return total


def _with_vectors(feature: Any, embedding_size: int) -> Indicator | Embedding:
    """Return the indicator or embedding through which a feature with ids enters the network.

    If the feature is one of these, it is returned unchanged. Otherwise, a sequence, or a feature
    with more than `embedding_size` ids, becomes an embedding with vectors of that length; others
    become indicators.
    """
    if isinstance(feature, (Indicator, Embedding)):
        return feature
    few = feature.num_ids <= embedding_size and not isinstance(feature, IdSequence)
    return Indicator(feature) if few else Embedding(feature, embedding_size)


def _places(columns: Columns) -> dict[Any, int]:
    """Return where each column's values begin in the rows of an input array: column -> position.

    Numbers and times are in one array (`numbers`), categories in another (`ids`); see
    `Columns.arrays`. Other columns are left out.
    """
    places: dict[Any, int] = {}
    numbers = ids = 0
    for source in columns.sources:
        if isinstance(source, (Number, Time)):
            places[source] = numbers
            numbers += source.size
        elif isinstance(source, Category):
            places[source] = ids
            ids += 1
    return places


def _plain_places(columns: Columns) -> dict[Any, range]:
    """Return time or vector column -> its positions in the array `plain` of `Columns.arrays`."""
    places: dict[Any, range] = {}
    first = 0
    for source in columns.sources:
        if isinstance(source, (Time, Sparse)):
            size = source.size if isinstance(source, Sparse) else 2 * len(source.cycles)
            places[source] = range(first, first + size)
            first += size
    return places


def _joined(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else keras.ops.concatenate(parts, axis=-1)
