"""An optimizer that adds noise to the gradients, drawn from its own SeedGenerator."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Optimizers"
EXPECT = "refused: its generator cannot be seeded for a step; in an optimizer, draw without a seed"
REFUSAL = "which is not in any layer"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Noisy(keras.optimizers.SGD):
    def __init__(self, learning_rate):
        super().__init__(learning_rate, momentum=0.9)
        self.seed_generator = keras.random.SeedGenerator(5)

    def apply(self, grads, trainable_variables=None):
        noise = [keras.random.normal(g.shape, seed=self.seed_generator) for g in grads]
        grads = [g + 0.05 * n for g, n in zip(grads, noise, strict=True)]
        return super().apply(grads, trainable_variables)


def custom_model():
    return mlp()


def optimizer():
    return Noisy(0.05)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
