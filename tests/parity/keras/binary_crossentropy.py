"""BinaryCrossentropy, `from_logits`, label smoothing."""

import keras
from shared import fit, mlp, named, table_schema, yes_or_no

GROUP = "Losses"

data_schema, input_fn = table_schema, yes_or_no
loss = keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1)


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.BinaryAccuracy(threshold=0.0)}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
