"""`initial_epoch` as an option of the command line."""

import keras
from shared import mlp, numbers, table_schema

GROUP = "Input"
EXPECT = "refused: run the same command again to resume from the last checkpoint"
REFUSAL = "initial_epoch"
JOB = {"initial_epoch": 1}

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    history = model.fit(
        *numbers(data.train), epochs=data.epochs, initial_epoch=1, shuffle=False, verbose=0
    )
    return history.history, model
