"""A custom LearningRateSchedule."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Learning rate schedules"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        step = keras.ops.cast(step, "float32")
        return 0.02 * keras.ops.minimum(1.0, (step + 1) / 10)

    def get_config(self):
        return {}


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.Adam(Warmup())


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
