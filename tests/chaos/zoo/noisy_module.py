"""Everything that draws random numbers or keeps statistics: what a resume has to get right."""

import keras
import numpy as np
import tensorflow as tf


def custom_model():
    inputs = keras.Input((28, 28), name="image")
    x = keras.layers.Reshape((28, 28, 1))(inputs)
    x = keras.layers.Conv2D(4, 5, strides=4, activation="relu")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dropout(0.3)(x)
    # Some megabytes, so that a checkpoint takes long enough to be killed in.
    x = keras.layers.Dense(2048, activation="relu")(x)
    x = keras.layers.Dropout(0.2)(x)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def data_schema():
    return [
        {"name": "image", "shape": [28, 28], "dtype": tf.float32},
        {"name": "label", "shape": [1], "dtype": tf.int64},
    ]


def input_fn(records):
    images = np.stack([record["image"] for record in records]) / 255
    images = images + np.random.normal(size=images.shape, scale=0.1)  # noqa: NPY002 - users do
    flips = tf.random.uniform([len(records), 1, 1]) > 0.9
    images = tf.where(flips, images[:, ::-1], images)
    return {"image": tf.cast(images, tf.float32)}, np.stack([r["label"] for r in records])


def loss(output, labels):
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(logits=output, labels=labels.flatten())
    )


def optimizer():
    return keras.optimizers.Adam(0.003)


def eval_metrics_fn(predictions, labels):
    right = tf.equal(tf.argmax(predictions, axis=1), labels.flatten())
    return {"accuracy": tf.reduce_mean(tf.cast(right, tf.float32))}


def callbacks():
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.98),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", factor=0.9, patience=1, min_delta=0.05),
    ]
