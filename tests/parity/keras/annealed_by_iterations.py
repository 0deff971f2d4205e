"""A `compute_loss` whose second term grows with `self.optimizer.iterations` (KL annealing)."""

import keras
from keras import layers, ops
from shared import fit, numbers, table_schema

GROUP = "Custom training"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Annealed(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = layers.Dense(6, "tanh"), layers.Dense(1)

    def call(self, x):
        return self.head(self.hidden(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        value = super().compute_loss(x, y, y_pred, sample_weight, training)
        share = ops.minimum(ops.cast(self.optimizer.iterations, "float32") / 12.0, 1.0)
        return value + share * ops.mean(ops.square(self.hidden(x)))


def custom_model():
    model = Annealed()
    model(ops.zeros((2, 8)))
    return model


def optimizer():
    return keras.optimizers.Adam(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
