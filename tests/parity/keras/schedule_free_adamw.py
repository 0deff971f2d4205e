"""ScheduleFreeAdamW with warm-up, built before `fit`."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.ScheduleFreeAdamW(0.05, warmup_steps=5, weight_decay=0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    # Keras builds it within the first step, where the start of its average is lost (3.15).
    model.optimizer.build(model.trainable_variables)
    return fit(data, model, input_fn)
