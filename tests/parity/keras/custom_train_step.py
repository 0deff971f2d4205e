"""A custom `train_step`."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom training"
EXPECT = (
    "refused: workers compute gradients and make the update separately, so there is no single step "
    "to override"
)
REFUSAL = "train_step"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Ascending(keras.Sequential):
    def train_step(self, data):
        import tensorflow as tf

        x, y = data
        with tf.GradientTape() as tape:
            value = -self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(value, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": value}


def custom_model():
    return Ascending([keras.Input((8,)), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
