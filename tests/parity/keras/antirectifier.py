"""A layer that prints shapes while it is debugged (Keras guide: Antirectifier), run eagerly."""

import keras
from keras import layers, ops
from shared import classes, fit, named, table_schema

GROUP = "Custom layers"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Antirectifier(layers.Layer):
    def __init__(self, initializer="he_normal", **kwargs):
        super().__init__(**kwargs)
        self.initializer = keras.initializers.get(initializer)

    def build(self, input_shape):
        output_dim = input_shape[-1]
        self.kernel = self.add_weight(
            shape=(output_dim * 2, output_dim),
            initializer=self.initializer,
            name="kernel",
            trainable=True,
        )

    def call(self, inputs, training=False):
        inputs -= ops.mean(inputs, axis=-1, keepdims=True)
        pos = ops.relu(inputs)
        neg = ops.relu(-inputs)
        if training:
            print("pos.shape:", pos.shape)
            print("neg.shape:", neg.shape)
        concatenated = ops.concatenate([pos, neg], axis=-1)
        if training:
            print("concatenated.shape:", concatenated.shape)
            print("kernel.shape:", self.kernel.shape)
        return ops.matmul(concatenated, self.kernel)

    def get_config(self):
        base_config = super().get_config()
        config = {"initializer": keras.initializers.serialize(self.initializer)}
        return dict(list(base_config.items()) + list(config.items()))


def custom_model():
    model = keras.Sequential(
        [
            keras.Input(shape=(8,)),
            layers.Dense(16),
            Antirectifier(),
            layers.Dense(16),
            Antirectifier(),
            layers.Dense(3),
        ]
    )
    model.compile(run_eagerly=True)
    return model


def optimizer():
    return keras.optimizers.RMSprop()


def eval_metrics_fn():
    return {"sparse_categorical_accuracy": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()), run_eagerly=True)
    return fit(data, model, input_fn)
