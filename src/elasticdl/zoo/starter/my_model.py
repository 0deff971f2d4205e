r"""My model: recognises handwritten digits. Change anything; every part below is yours.

ElasticDL reads this file and calls its functions by name:

    files --data_schema--> records --input_fn--> model --loss--> optimizer

    elasticdl train --model_zoo=FOLDER_OF_THIS_FILE --model_def=my_model \
        --data=DATA --output=OUTPUT
"""

import keras
import numpy as np


def custom_model():
    """Return the model; any Keras model works, functional or a subclass."""
    return keras.Sequential(
        [
            # The name is the key under which input_fn returns the images.
            keras.Input((28, 28), name="image"),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def data_schema():
    """Return the fields of one record of the data.

    `elasticdl data show FILE` prints the fields of a file.
    """
    return [
        {"name": "image", "shape": [28, 28], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    """Convert the records of one batch into the inputs of the model and the loss.

    `records` is a list of dicts of numpy arrays. For predictions, there may be no label.
    """
    images = np.stack([record["image"] for record in records]) / 255
    labels = np.array([record["label"] for record in records if "label" in record])
    return {"image": images.astype("float32")}, labels


def loss(output, labels):
    """Return the error of the outputs: one number for the batch, or one for each example."""
    return keras.losses.sparse_categorical_crossentropy(
        keras.ops.ravel(labels), output, from_logits=True
    )


def optimizer(learning_rate=0.001):
    """Return the optimizer, which updates the weights; any Keras optimizer works."""
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn():
    """Return the metrics to measure in addition to the loss, by name."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
