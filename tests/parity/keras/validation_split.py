"""`validation_split`."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Input"
EXPECT = "refused: split the records into two sets of files and set validation_data"
REFUSAL = "validation_split"
JOB = {"validation_split": "0.2"}

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
