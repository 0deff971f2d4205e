"""`validation_split`."""

import keras
from shared import mlp, numbers, table_schema

GROUP = "Input"
EXPECT = (
    "differs: the records that are held out are chosen by a hash of the name of their file and "
    "their number in it; Keras holds out the last ones"
)
JOB = {"validation_split": "0.2", "validation_data": None}

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
        *numbers(data.train),
        batch_size=data.batch_size,
        epochs=data.epochs,
        shuffle=False,
        validation_split=0.2,
        verbose=0,
    )
    return history.history, model
