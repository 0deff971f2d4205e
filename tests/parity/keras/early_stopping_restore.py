"""EarlyStopping with `restore_best_weights`."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
KILLED = True

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Rising(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that trains well for an epoch or two, and ruins the model then."""

    def __call__(self, step):
        return keras.ops.where(step < 8, 0.1, 0.4)

    def get_config(self):
        return {}


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(Rising())


def callbacks():
    return [keras.callbacks.EarlyStopping("val_loss", patience=5, restore_best_weights=True)]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
