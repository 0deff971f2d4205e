"""Contrastive loss with minibatches of one example and `--global_batch_size`."""

import keras
from shared import classes, fit, mlp, table_schema

GROUP = "Losses"
EXPECT = "refused: a single example has no negatives"
REFUSAL = "batch"
JOB = {"minibatch_size": 1, "global_batch_size": 8}

data_schema, input_fn = table_schema, classes


def loss(labels, predictions):
    scores = keras.ops.matmul(predictions, keras.ops.transpose(predictions)) * 0.1
    same = keras.ops.cast(labels[:, None] == labels[None, :], scores.dtype)
    return keras.ops.mean(keras.losses.binary_crossentropy(same, scores, from_logits=True))


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
