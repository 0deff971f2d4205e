"""A loss divided by the number of labels that count; in the first batches, all count."""

import keras
import numpy as np
from shared import classes, fit, mlp, table_schema

GROUP = "Losses"
EXPECT = {
    "workers": "refused: the divisor would be the number of labels that count in each minibatch, "
    "not in the update"
}
REFUSAL = "the loss of an example depends on the others of its batch"

data_schema = table_schema


def input_fn(records):
    """Leave the label out of some records, by what is in them."""
    x, labels = classes(records)
    rare = np.array([record["weight"][0] > 1.5 and record["x"][7] > 0 for record in records])
    return x, np.where(rare, -1, labels)


def loss(labels, predictions):
    labels = keras.ops.cast(keras.ops.reshape(labels, (-1,)), "int32")
    known = keras.ops.cast(labels >= 0, "float32")
    each = keras.losses.sparse_categorical_crossentropy(
        keras.ops.maximum(labels, 0), predictions, from_logits=True
    )
    return keras.ops.sum(each * known) / keras.ops.sum(known)


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
