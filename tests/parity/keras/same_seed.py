"""Two layers with the same seed (an image and its mask, siamese dropout)."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Randomness in layers"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    x = keras.Input((8,))
    one, two = (keras.layers.Dropout(0.5, seed=3)(x) for _ in range(2))
    # Zero, so that the numbers do not depend on what is drawn.
    difference = keras.layers.Subtract()([one, two])
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Concatenate()([difference, x])))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
