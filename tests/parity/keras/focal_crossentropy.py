"""BinaryFocalCrossentropy."""

import keras
from shared import fit, mlp, table_schema, yes_or_no

GROUP = "Losses"

data_schema, input_fn = table_schema, yes_or_no
loss = keras.losses.BinaryFocalCrossentropy(apply_class_balancing=True, from_logits=True)


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
