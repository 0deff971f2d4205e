"""A custom Loss that divides by its moving average."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Losses"
EXPECT = "refused: no checkpoint holds it; make it a weight of a layer"
REFUSAL = "size"

data_schema, input_fn = table_schema, numbers


class Normalized(keras.losses.Loss):
    def __init__(self):
        super().__init__()
        self.size = keras.Variable(1.0, trainable=False, name="size")

    def call(self, y_true, y_pred):
        error = keras.ops.mean(keras.ops.square(y_pred - y_true), axis=-1)
        mean = keras.ops.stop_gradient(keras.ops.mean(error))
        self.size.assign(0.9 * self.size + 0.1 * mean)
        return error / self.size


loss = Normalized()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), Normalized())
    return fit(data, model, input_fn)
