"""AUC of the precision-recall curve for several labels, with `label_weights`."""

import keras
import numpy as np
from shared import fit, mlp, named, table_schema

GROUP = "Metrics"

data_schema = table_schema
loss = keras.losses.BinaryCrossentropy(from_logits=True)


def input_fn(records):
    """Return (x, which of the first four numbers are positive)."""
    x = np.stack([record["x"] for record in records])
    return x, np.float32(x[:, :4] > 0.3)


def custom_model():
    return mlp(4)


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {
        "pr_auc": keras.metrics.AUC(
            num_thresholds=50, curve="PR", multi_label=True, num_labels=4, from_logits=True
        ),
        "weighted_auc": keras.metrics.AUC(
            multi_label=True,
            label_weights=[0.1, 0.2, 0.3, 0.4],
            summation_method="minoring",
            from_logits=True,
        ),
    }


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
