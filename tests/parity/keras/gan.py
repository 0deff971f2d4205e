"""A GAN: several optimizers in one model."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom training"
EXPECT = "refused: a step computes gradients and makes one update with one optimizer"
REFUSAL = "train_step"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Gan(keras.Model):
    def __init__(self):
        super().__init__()
        self.generator, self.judge = keras.layers.Dense(8), keras.layers.Dense(1)

    def compile(self, judge_optimizer=None, **more):
        super().compile(**more)
        self.judge_optimizer = judge_optimizer or keras.optimizers.SGD(0.01)

    def call(self, x):
        return self.judge(self.generator(x))

    def train_step(self, data):
        return {"loss": keras.ops.mean(self(data[0]))}


def custom_model():
    return Gan()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
