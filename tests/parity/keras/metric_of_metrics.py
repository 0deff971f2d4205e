"""A custom Metric that is computed from two others."""

import keras
from shared import fit, named, table_schema, yes_or_no

GROUP = "Metrics"

data_schema, input_fn = table_schema, yes_or_no
loss = keras.losses.BinaryCrossentropy()


class F1(keras.metrics.Metric):
    def __init__(self, name="f1"):
        super().__init__(name=name)
        self.precision, self.recall = keras.metrics.Precision(), keras.metrics.Recall()

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.precision.update_state(y_true, y_pred, sample_weight)
        self.recall.update_state(y_true, y_pred, sample_weight)

    def result(self):
        precision, recall = self.precision.result(), self.recall.result()
        return 2 * precision * recall / (precision + recall + keras.config.epsilon())

    def reset_state(self):
        self.precision.reset_state()
        self.recall.reset_state()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6, activation="tanh"),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"f1": F1()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
