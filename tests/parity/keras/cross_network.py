"""Wide, deep and cross networks: one-hot and embedded columns, and `x0 * dense(x) + x`."""

import keras
import numpy as np
from keras import layers
from shared import fit, named, table_schema, tokens_schema

GROUP = "Models"

COLUMNS = ("colour", "size", "shape")
loss = keras.losses.SparseCategoricalCrossentropy()


def data_schema():
    return [table_schema()[0], table_schema()[2], tokens_schema()[0]]


def input_fn(records):
    tokens = np.stack([record["tokens"] for record in records])
    features = {name: tokens[:, i] for i, name in enumerate(COLUMNS)}
    features["numbers"] = np.stack([record["x"] for record in records])
    return features, np.stack([record["label"] for record in records])


def encode(inputs, use_embedding):
    encoded = [inputs["numbers"]]
    for name in COLUMNS:
        mode = "int" if use_embedding else "one_hot"
        ids = layers.IntegerLookup(vocabulary=list(range(1, 20)), output_mode=mode)(inputs[name])
        encoded.append(layers.Embedding(20, 3)(ids) if use_embedding else ids)
    return layers.concatenate(encoded)


def custom_model():
    inputs = {name: keras.Input(shape=(), name=name, dtype="int64") for name in COLUMNS}
    inputs["numbers"] = keras.Input(shape=(8,), name="numbers")

    wide = encode(inputs, use_embedding=False)

    x0 = encode(inputs, use_embedding=True)
    cross = x0
    for _ in range(2):
        cross = x0 * layers.Dense(cross.shape[-1])(cross) + cross

    deep = x0
    for units in (8, 4):
        deep = layers.ReLU()(layers.LayerNormalization()(layers.Dense(units)(deep)))

    merged = layers.concatenate([wide, cross, deep])
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(merged))


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
