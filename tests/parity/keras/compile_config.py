"""A model with its own `compile`, `get_compile_config` and `compile_from_config` (Keras guide)."""

import keras
import numpy as np
import tensorflow as tf
from shared import fit, table_schema

GROUP = "Custom training"
EXPECT = "refused: it would not be called; write `loss`, `optimizer` and `eval_metrics_fn`"
REFUSAL = "its own compile"

data_schema = table_schema


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    label = np.stack([record["label"] for record in records])[:, 0]
    return x, keras.utils.to_categorical(label, 4)


@keras.saving.register_keras_serializable(package="my_custom_package")
def small_square_sum(y_true, y_pred):
    loss = tf.math.squared_difference(y_pred, y_true)
    loss = loss / 10.0
    return tf.reduce_sum(loss, axis=1)


@keras.saving.register_keras_serializable(package="my_custom_package")
def mean_pred(y_true, y_pred):
    return tf.reduce_mean(y_pred[:, 0])


@keras.saving.register_keras_serializable(package="my_custom_package")
class ModelWithCustomCompile(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense1 = keras.layers.Dense(8, activation="relu")
        self.dense2 = keras.layers.Dense(4, activation="softmax")

    def call(self, inputs):
        x = self.dense1(inputs)
        return self.dense2(x)

    def compile(self, optimizer, loss_fn, metrics):
        super().compile(optimizer=optimizer, loss=loss_fn, metrics=metrics)
        self.model_optimizer = optimizer
        self.loss_fn = loss_fn
        self.loss_metrics = metrics

    def get_compile_config(self):
        # These parameters would be serialized at saving time.
        return {
            "model_optimizer": self.model_optimizer,
            "loss_fn": self.loss_fn,
            "metrics": self.loss_metrics,
        }

    def compile_from_config(self, config):
        # Deserializes the compile parameters (important, since many are custom)
        optimizer = keras.utils.deserialize_keras_object(config["model_optimizer"])
        loss_fn = keras.utils.deserialize_keras_object(config["loss_fn"])
        metrics = keras.utils.deserialize_keras_object(config["metrics"])

        # Calls compile with the deserialized parameters
        self.compile(optimizer=optimizer, loss_fn=loss_fn, metrics=metrics)


def custom_model():
    return ModelWithCustomCompile()


def loss(y_true, y_pred):
    return small_square_sum(y_true, y_pred)


def optimizer():
    return keras.optimizers.SGD(0.5)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.CategoricalAccuracy(), "mean_pred": mean_pred}


def plain(data):
    model = custom_model()
    accuracy = keras.metrics.CategoricalAccuracy(name="accuracy")
    model.compile(optimizer(), small_square_sum, [accuracy, mean_pred])
    return fit(data, model, input_fn)
