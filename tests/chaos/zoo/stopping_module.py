"""A model that gets worse after its first epoch, and a callback that restores that one."""

import keras
from noisy_module import custom_model, data_schema, eval_metrics_fn, input_fn, loss  # noqa: F401


def optimizer():
    return keras.optimizers.SGD(-0.003)


def callbacks():
    return [keras.callbacks.EarlyStopping("loss", patience=99, restore_best_weights=True)]
