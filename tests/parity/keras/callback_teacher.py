"""A callback that averages the weights in a clone of the model (mean teacher)."""

import keras
from shared import fit, mlp, numbers, table_schema

GROUP = "Callbacks"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()


class Teacher(keras.callbacks.Callback):
    """Trains on from the teacher's weights in each epoch."""

    def on_train_begin(self, logs=None):
        self.teacher = keras.models.clone_model(self.model)
        self.teacher.set_weights(self.model.get_weights())

    def on_train_batch_end(self, batch, logs=None):
        for average, weight in zip(self.teacher.weights, self.model.weights, strict=True):
            average.assign(0.8 * average + 0.2 * weight)

    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights(self.teacher.get_weights())


def custom_model():
    return mlp()


def optimizer():
    return keras.optimizers.SGD(0.1)


def callbacks():
    return [Teacher()]


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn, callbacks())
