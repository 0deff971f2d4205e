"""A callback that anneals a weight of the loss, kept in a variable of the file."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"
EXPECT = "refused: no checkpoint holds it; make it an attribute of the callback"
REFUSAL = r"the variable beta\S* changes"

data_schema, input_fn = table_schema, numbers
beta = keras.Variable(0.0, trainable=False, name="beta")


class Annealing(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        beta.assign(beta + 0.05)


def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions) + beta * keras.ops.mean(
        keras.ops.square(predictions), axis=-1
    )


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Annealing()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
