"""A `compute_loss` as in Keras' reference, whose only metric is a tracker named `loss`."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom training"
EXPECT = "refused: a metric of that name would hide the loss; give it another name"
REFUSAL = "a metric is named 'loss'"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Tracking(keras.Model):
    def __init__(self, *args, **named):
        super().__init__(*args, **named)
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        found = keras.ops.mean(keras.ops.square(y_pred - y))
        found += sum(self.losses)
        self.loss_tracker.update_state(found)
        return found

    def reset_metrics(self):
        self.loss_tracker.reset_state()

    @property
    def metrics(self):
        return [self.loss_tracker]


def custom_model():
    inputs = keras.Input((8,))
    x = keras.layers.Dense(6, activation="tanh", kernel_regularizer="l2")(inputs)
    return Tracking(inputs, keras.layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer())
    return fit(data, model, input_fn)
