r"""My model: tells handwritten digits apart. Change anything; every part below is yours.

ElasticDL reads this file and calls its functions by name:

    files --data_schema--> records --input_fn--> model --loss--> optimizer

    elasticdl train --model_zoo=FOLDER_OF_THIS_FILE --model_def=my_model \
        --data=DATA --output=OUTPUT
"""

import keras
import numpy as np


def custom_model():
    """Return the model; any Keras model will do, functional or a subclass."""
    return keras.Sequential(
        [
            # The name is the key under which input_fn returns the pictures.
            keras.Input((28, 28), name="image"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def data_schema():
    """Say what one record of the data holds.

    `elasticdl data show FILE` prints what a file holds.
    """
    return [
        {"name": "image", "shape": [28, 28], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    """Turn the records of one batch into what the model and the loss take.

    `records` is a list of dicts of numpy arrays. In prediction there may be no label.
    """
    images = np.stack([record["image"] for record in records]) / 255
    labels = np.array([record["label"] for record in records if "label" in record])
    return {"image": images.astype("float32")}, labels


def loss(output, labels):
    """Return how wrong the outputs are: one number for the batch, or one for each example."""
    return keras.losses.sparse_categorical_crossentropy(
        keras.ops.ravel(labels), output, from_logits=True
    )


def optimizer(learning_rate=0.001):
    """Return what changes the weights; any Keras optimizer will do."""
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn():
    """Return what to measure beside the loss, by name."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
