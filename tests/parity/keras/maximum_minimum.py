"""Maximum, Minimum: a maxout network, and two embeddings merged with their masks."""

import keras
import numpy as np
from keras import layers
from shared import fit, table_schema, tokens_schema

GROUP = "Layers"

loss = keras.losses.MeanSquaredError()


def data_schema():
    return [table_schema()[0], *tokens_schema()]


def input_fn(records):
    features = {name: np.stack([record[name] for record in records]) for name in ("x", "tokens")}
    return features, np.stack([record["y"] for record in records])


def custom_model():
    x, tokens = keras.Input((8,), name="x"), keras.Input((10,), dtype="int64", name="tokens")
    maxout = layers.Maximum()([layers.Dense(6)(x) for _ in range(3)])
    embedded = [layers.Embedding(20, 4, mask_zero=True)(tokens) for _ in range(2)]
    pooled = layers.GlobalAveragePooling1D()(layers.Minimum()(embedded))
    joined = layers.Concatenate()([maxout, pooled])
    return keras.Model({"x": x, "tokens": tokens}, layers.Dense(1)(joined))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
