"""MultiOptimizer: one optimizer per layer."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp(name="first")


def optimizer():
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 18)
    slow = keras.optimizers.SGD(0.01, momentum=0.9, clipnorm=0.1)
    fast = keras.optimizers.SGD(schedule, momentum=0.5)
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(fast, {".*first/.*": slow})
    )


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
