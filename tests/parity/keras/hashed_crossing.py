"""HashedCrossing, and an Embedding shared by two inputs, with `mask_zero`."""

import keras
from shared import fit, tokens, tokens_schema

GROUP = "Preprocessing layers"

data_schema = tokens_schema


def input_fn(records):
    x, y = tokens(records)
    return {"left": x[:, :5], "right": x[:, 5:], "a": x[:, :1], "b": x[:, 1:2]}, y


loss = keras.losses.Huber()


def custom_model():
    left = keras.Input((5,), name="left", dtype="int64")
    right = keras.Input((5,), name="right", dtype="int64")
    a = keras.Input((1,), name="a", dtype="int64")
    b = keras.Input((1,), name="b", dtype="int64")
    crossed = keras.layers.HashedCrossing(8, output_mode="one_hot")((a, b))
    table = keras.layers.Embedding(20, 4, mask_zero=True)
    read = keras.layers.LSTM(3)
    first, second = read(table(left)), read(table(right))
    near = keras.layers.Dot(1, normalize=True)([first, second])
    x = keras.layers.Concatenate()([first, second, near, crossed])
    return keras.Model({"left": left, "right": right, "a": a, "b": b}, keras.layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.SGD(0.1, momentum=0.5, nesterov=True)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
