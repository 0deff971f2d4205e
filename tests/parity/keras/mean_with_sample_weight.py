"""`reduction="mean_with_sample_weight"`."""

import keras
import numpy as np
from shared import mlp, numbers, table_schema

GROUP = "Losses"
EXPECT = {
    "two workers": "differs: the reported loss weights the mean of each worker's minibatch by its "
    "number of examples; the weights of the model are equal"
}
SAME_WEIGHTS = True

data_schema = table_schema
loss = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")


def input_fn(records):
    x, y = numbers(records)
    return x, y, np.concatenate([record["weight"] for record in records])


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    x, y, weights = input_fn(data.train)
    history = model.fit(
        x,
        y,
        sample_weight=weights,
        batch_size=data.batch_size,
        epochs=data.epochs,
        shuffle=False,
        validation_data=input_fn(data.validation),
        verbose=0,
    )
    return history.history, model
