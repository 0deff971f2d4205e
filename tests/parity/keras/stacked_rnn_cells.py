"""RNN with a custom cell in StackedRNNCells, ConvLSTM1D."""

import keras
from shared import fit, series, series_schema

GROUP = "Sequences"

data_schema, input_fn = series_schema, series
loss = keras.losses.MeanSquaredError()


class Minimal(keras.layers.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = self.state_size = units

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
        self.again = self.add_weight(
            shape=(self.units, self.units), initializer="orthogonal", name="again"
        )

    def call(self, x, states):
        output = keras.ops.tanh(x @ self.kernel + states[0] @ self.again)
        return output, [output]


def custom_model():
    inputs = keras.Input((6, 3))
    x = keras.layers.RNN([Minimal(4), keras.layers.GRUCell(3)], go_backwards=True)(inputs)
    y = keras.layers.ConvLSTM1D(2, 2)(keras.layers.Reshape((6, 3, 1))(inputs))
    return keras.Model(
        inputs, keras.layers.Dense(1)(keras.layers.Concatenate()([x, keras.layers.Flatten()(y)]))
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
