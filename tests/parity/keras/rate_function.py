"""A learning rate that is a function (`learning_rate=` a callable without arguments)."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    def rate():
        return 0.2 / (1.0 + 0.3 * keras.ops.cast(sgd.iterations, "float32"))

    sgd = keras.optimizers.SGD(rate, momentum=0.9)
    return sgd


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
