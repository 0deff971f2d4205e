"""BatchNormalization."""

import keras
from shared import classes, fit, table_schema

GROUP = "Normalization"
EXPECT = {"two workers": "differs: each worker normalizes with the statistics of its own minibatch"}

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    return keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(16),
            keras.layers.BatchNormalization(),
            keras.layers.Activation("relu"),
            keras.layers.Dense(3),
        ]
    )


def optimizer():
    return keras.optimizers.SGD(0.1)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    model.compile(optimizer(), loss, metrics=[accuracy])
    return fit(data, model, input_fn)
