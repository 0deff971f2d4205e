"""A callback that freezes a BatchNormalization before the first step (`layer.trainable`)."""

import keras
from shared import fit, numbers, table_schema

GROUP = "Callbacks"
EXPECT = (
    "refused: the step is compiled for the model as the file creates it; freeze the layer there"
)
REFUSAL = r"on_train_begin\(\) changes trainable of sequential/batch_normalization"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Freeze(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.model.layers[1].trainable = False

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            self.model.layers[0].trainable = True


def custom_model():
    model = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(6),
            keras.layers.BatchNormalization(momentum=0.5),
            keras.layers.Dense(1),
        ]
    )
    model.layers[0].trainable = False
    return model


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Freeze()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
