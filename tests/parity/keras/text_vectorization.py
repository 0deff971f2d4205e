"""TextVectorization with `adapt`."""

import keras
import numpy as np
from shared import text_schema

GROUP = "Preprocessing layers"

loss = keras.losses.MeanSquaredError()


data_schema = text_schema


def input_fn(records):
    """Return (sentences, y)."""
    return np.array([record["text"][0] for record in records], object), np.stack(
        [record["y"] for record in records]
    )


def custom_model():
    vectorize = keras.layers.TextVectorization(max_tokens=12, output_sequence_length=10)
    vectorize.adapt(["red green blue", "small large old", "new round flat loud"])
    inputs = keras.Input((), dtype="string")
    x = keras.layers.Embedding(12, 4)(vectorize(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(x)))


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
