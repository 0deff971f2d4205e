"""Monte Carlo dropout: Dropout called with `training=True`, so evaluation draws, too."""

import keras
from keras import layers
from shared import fit, numbers, table_schema

GROUP = "Randomness in layers"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    inputs = keras.Input((8,))
    x = layers.Dense(6, activation="relu")(inputs)
    x = layers.Dropout(0.3, seed=3)(x, training=True)
    x = layers.Dense(6, activation="relu")(x)
    x = layers.Dropout(0.3)(x, training=True)
    return keras.Model(inputs, layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.RMSprop(0.01)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
