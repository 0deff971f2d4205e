"""A custom `test_step`."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Custom training"
EXPECT = "refused: workers share the batches of an evaluation"
REFUSAL = "test_step"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Tested(keras.Sequential):
    def test_step(self, data):
        return {"loss": super().test_step(data)["loss"] * 2}


def custom_model():
    return Tested([keras.Input((8,)), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
