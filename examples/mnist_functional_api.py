r"""Handwritten digits with Keras's functional API: the smallest complete model file.

    elasticdl data sample digits --output=demo/data
    elasticdl train --model_zoo=examples --model_def=mnist_functional_api \
        --data=demo/data/train --output=demo/mnist --num_epochs=8
"""

from pathlib import Path

import keras
import numpy as np

# The file is loaded once in every process that trains; each gets its own model.
inputs = keras.Input((28, 28), name="image")
x = keras.layers.Reshape((28, 28, 1))(inputs)
x = keras.layers.Conv2D(16, 3, activation="relu")(x)
x = keras.layers.MaxPooling2D()(x)
x = keras.layers.Conv2D(32, 3, activation="relu")(x)
x = keras.layers.BatchNormalization(momentum=0.9)(x)
x = keras.layers.MaxPooling2D()(x)
x = keras.layers.Flatten()(x)
x = keras.layers.Dropout(0.25)(x)
outputs = keras.layers.Dense(10, activation="softmax")(x)

model = keras.Model(inputs, outputs, name="mnist")


def data_schema():
    """Say what a record holds; files are written and read by it."""
    return [
        {"name": "image", "shape": [28, 28], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    """Make one batch: grey values 0 .. 255 become 0 .. 1."""
    images = np.stack([record["image"] for record in records]) / np.float32(255)
    # There is no label in what is to be predicted.
    labels = np.array([record["label"] for record in records if "label" in record])
    return {"image": images}, labels


def loss(output, labels):
    """Return the cross-entropy of the true digits; labels are [batch, 1]."""
    return keras.losses.sparse_categorical_crossentropy(keras.ops.ravel(labels), output)


def optimizer(learning_rate=0.003):
    """Return Adam; `--params="learning_rate=0.001"` sets its step size."""
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn(predictions, labels):
    """Return the share of digits that are right, for one batch."""
    right = keras.ops.equal(
        keras.ops.argmax(predictions, axis=1), keras.ops.cast(keras.ops.ravel(labels), "int32")
    )
    return {"accuracy": keras.ops.mean(keras.ops.cast(right, "float32"))}


def prepare_data_for_a_single_file(filename):
    """Return the record of a picture file that lies in a folder named after its digit.

    elasticdl data prepare --model_zoo=examples --model_def=mnist_functional_api \
        --input='pictures/*/*.png' --output=my_data
    """
    from PIL import Image  # noqa: PLC0415 - only preparing data needs it

    with Image.open(filename) as picture:
        image = np.array(picture.convert("L").resize((28, 28)), "float32")
    return image, np.array([int(Path(filename).parent.name)])
