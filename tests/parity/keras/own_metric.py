"""A custom Metric whose state is a sum."""

import keras
from shared import fit, mlp, named, numbers, table_schema

GROUP = "Metrics"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Total(keras.metrics.Metric):
    def __init__(self, name="total"):
        super().__init__(name=name)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, labels, predictions, sample_weight=None):
        error = keras.ops.abs(labels - predictions)
        self.value.assign(self.value + keras.ops.sum(error))

    def result(self):
        return self.value


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"total": Total()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
