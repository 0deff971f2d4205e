"""A metric that returns a dict with a value named `loss`, which EarlyStopping monitors."""

import keras
from keras import ops
from shared import classes, fit, mlp, named, table_schema

GROUP = "Metrics"
EXPECT = "refused: it would hide the loss"
REFUSAL = "named 'loss'"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Margins(keras.metrics.Metric):
    def __init__(self, name="margins", **options):
        super().__init__(name=name, **options)
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(ops.sum(ops.abs(y_pred)))

    def result(self):
        return {"loss": self.total, "half": self.total / 2}


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.2)


def eval_metrics_fn():
    return {"margins": Margins()}


def callbacks():
    return [keras.callbacks.EarlyStopping("val_loss", patience=0)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn, callbacks())
