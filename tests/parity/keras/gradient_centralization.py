"""Gradient centralization: an RMSprop that overrides `apply_gradients`."""

import keras
from keras import ops
from shared import fit, mlp, numbers, table_schema

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class GCRMSprop(keras.optimizers.RMSprop):
    def apply_gradients(self, grads_and_vars):
        centralized = []
        for grad, variable in grads_and_vars:
            if len(grad.shape) > 1:
                axis = list(range(len(grad.shape) - 1))
                grad = grad - ops.mean(grad, axis=axis, keepdims=True)  # noqa: PLW2901
            centralized.append((grad, variable))
        return super().apply_gradients(centralized)


def custom_model():
    return mlp()


def optimizer():
    return GCRMSprop(learning_rate=0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
