"""TabTransformer: attention between the embeddings of columns."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit, named, table_schema, tokens_schema

GROUP = "Models"

COLUMNS = ("colour", "size", "shape")
loss = keras.losses.BinaryCrossentropy()


def data_schema():
    return [*table_schema()[:2], tokens_schema()[0]]


def input_fn(records):
    tokens = np.stack([record["tokens"] for record in records])
    features = {name: tokens[:, i] for i, name in enumerate(COLUMNS)}
    features["numbers"] = np.stack([record["x"] for record in records])
    return features, np.float32(np.stack([record["y"] for record in records]) > 0)


def mlp(x, units, activation):
    for width in units:
        x = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Dense(width, activation=activation)(x)
    return x


def custom_model():
    inputs = {name: keras.Input(shape=(), name=name, dtype="int64") for name in COLUMNS}
    inputs["numbers"] = keras.Input(shape=(8,), name="numbers")
    encoded = ops.stack(
        [layers.Embedding(input_dim=20, output_dim=4)(inputs[name]) for name in COLUMNS], axis=1
    )
    column_embedding = layers.Embedding(input_dim=len(COLUMNS), output_dim=4)
    column_indices = ops.arange(start=0, stop=len(COLUMNS), step=1)
    encoded = encoded + column_embedding(column_indices)
    for _ in range(2):
        attended = layers.MultiHeadAttention(num_heads=2, key_dim=4)(encoded, encoded)
        x = layers.Add()([attended, encoded])
        x = layers.LayerNormalization(epsilon=1e-6)(x)
        fed = layers.Dense(4, activation=keras.activations.gelu)(x)
        x = layers.Add()([fed, x])
        encoded = layers.LayerNormalization(epsilon=1e-6)(x)
    features = layers.concatenate(
        [layers.Flatten()(encoded), layers.LayerNormalization(epsilon=1e-6)(inputs["numbers"])]
    )
    features = mlp(features, (8, 4), keras.activations.selu)
    return keras.Model(inputs, layers.Dense(units=1, activation="sigmoid")(features))


def optimizer():
    return keras.optimizers.SGD(learning_rate=0.05, momentum=0.9)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.BinaryAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
