"""A custom `compute_loss`."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom training"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Penalized(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        found = super().compute_loss(x, y, y_pred, sample_weight, training)
        return found + 0.1 * keras.ops.mean(keras.ops.square(y_pred))


def custom_model():
    return Penalized([keras.Input((8,)), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
