"""A Metric that returns a dict (the recall of each class), and a callback that reads one value."""

import keras
from keras import ops
from shared import classes, fit, mlp, named, table_schema

GROUP = "Metrics"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class RecallOfClasses(keras.metrics.Metric):
    def __init__(self, num_classes, name="recalls", **options):
        super().__init__(name=name, **options)
        self.num_classes = num_classes
        self.hits = self.add_variable((num_classes,), "zeros", name="hits")
        self.totals = self.add_variable((num_classes,), "zeros", name="totals")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        truth = ops.one_hot(y_true, self.num_classes)
        hit = ops.cast(ops.argmax(y_pred, axis=-1) == y_true, truth.dtype)
        self.totals.assign_add(ops.sum(truth, axis=0))
        self.hits.assign_add(ops.sum(truth * hit[:, None], axis=0))

    def result(self):
        recalls = ops.divide_no_nan(self.hits, self.totals)
        return {f"recall_of_{i}": recalls[i] for i in range(self.num_classes)}


class SlowDown(keras.callbacks.Callback):
    """Lowers the learning rate the more of a class is found."""

    def on_epoch_end(self, epoch, logs=None):
        rate = self.model.optimizer.learning_rate
        self.model.optimizer.learning_rate = float(rate) / (1 + logs["val_recall_of_1"])


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.2)


def eval_metrics_fn():
    return {"recalls": RecallOfClasses(3)}


def callbacks():
    return [SlowDown()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn, callbacks())
