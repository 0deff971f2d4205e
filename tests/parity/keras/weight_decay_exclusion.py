"""Weight decay except on biases (`exclude_from_weight_decay`)."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    adamw = keras.optimizers.AdamW(0.01, weight_decay=0.02)
    adamw.exclude_from_weight_decay(var_names=["bias"])
    return adamw


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
