"""Precision, Recall, AUC, BinaryAccuracy."""

import keras
from shared import fit, mlp, named, table_schema, yes_or_no

GROUP = "Metrics"

data_schema, input_fn = table_schema, yes_or_no
loss = keras.losses.BinaryCrossentropy(from_logits=True)


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {
        "accuracy": keras.metrics.BinaryAccuracy(threshold=0.0),
        "precision": keras.metrics.Precision(thresholds=0.0),
        "recall": keras.metrics.Recall(thresholds=0.0),
        "auc": keras.metrics.AUC(from_logits=True),
    }


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
