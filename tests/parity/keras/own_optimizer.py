"""A custom optimizer: `update_step`, and an `apply` that changes gradients."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Optimizers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Signum(keras.optimizers.Optimizer):
    """Signs of momenta, of centralized gradients."""

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self.momenta = [self.add_variable_from_reference(v, "momentum") for v in variables]

    def apply(self, grads, trainable_variables=None):
        grads = [
            g - keras.ops.mean(g, axis=0, keepdims=True) if len(g.shape) > 1 else g for g in grads
        ]
        return super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        momentum = self.momenta[self._get_variable_index(variable)]
        momentum.assign(0.8 * momentum + gradient)
        step = learning_rate / (1.0 + keras.ops.cast(self.iterations, variable.dtype))
        variable.assign_sub(step * keras.ops.tanh(10.0 * momentum))


def custom_model():
    return mlp()


def optimizer():
    return Signum(0.05)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
