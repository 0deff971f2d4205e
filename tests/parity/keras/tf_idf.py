"""TextVectorization with `adapt`, bigrams and `output_mode="tf_idf"`."""

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
    vectorize = keras.layers.TextVectorization(
        max_tokens=20, ngrams=2, output_mode="tf_idf", standardize="lower_and_strip_punctuation"
    )
    vectorize.adapt(["red green blue", "small large old red", "new round flat loud", "red old"])
    inputs = keras.Input((), dtype="string")
    hidden = keras.layers.Dense(6, activation="relu")(vectorize(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


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
