"""Hashing, StringLookup."""

import keras
import numpy as np
from shared import text_schema

GROUP = "Preprocessing layers"

loss = keras.losses.MeanSquaredError()


data_schema = text_schema


def input_fn(records):
    """Return (first word, y)."""
    words = [record["text"][0].split()[0] for record in records]
    return np.array(words, object)[:, None], np.stack([record["y"] for record in records])


def custom_model():
    inputs = keras.Input((1,), dtype="string")
    hashed = keras.layers.Embedding(5, 3)(keras.layers.Hashing(5)(inputs))
    looked_up = keras.layers.Embedding(5, 3)(
        keras.layers.StringLookup(vocabulary=["red", "green", "small", "old"])(inputs)
    )
    x = keras.layers.Flatten()(keras.layers.concatenate([hashed, looked_up]))
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    import tensorflow as tf

    model = custom_model()
    model.compile(optimizer(), loss)
    x, y = input_fn(data.train)
    validation = input_fn(data.validation)
    history = model.fit(
        tf.data.Dataset.from_tensor_slices((x, y)).batch(data.batch_size),
        epochs=data.epochs,
        shuffle=False,
        validation_data=tf.data.Dataset.from_tensor_slices(validation).batch(data.batch_size),
        verbose=0,
    )
    return history.history, model
