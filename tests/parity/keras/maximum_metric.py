"""A Metric whose state is a maximum."""

import keras
from shared import fit, mlp, named, numbers, table_schema

GROUP = "Metrics"
EXPECT = {
    "workers": "refused: workers add up the states of metrics",
}
REFUSAL = "largest"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Largest(keras.metrics.Metric):
    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, labels, predictions, sample_weight=None):
        error = keras.ops.abs(labels - predictions)
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(error)))

    def result(self):
        return self.value


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"largest": Largest()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
