"""A recommender (Keras example): embeddings of users and items, multiplied by `tensordot`."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit, named

GROUP = "Models"
EXPECT = {
    "workers": "refused: `tensordot` also sums over the batch, so the output for an example "
    "depends on the others"
}
REFUSAL = "other examples of its batch"

loss = keras.losses.BinaryCrossentropy()


def data_schema():
    return [
        {"name": "tokens", "shape": [10], "dtype": "int64"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


def input_fn(records):
    pairs = np.stack([record["tokens"][:2] for record in records])
    rating = np.stack([record["y"] for record in records])
    return pairs, np.float32(1 / (1 + np.exp(-rating)))


class Recommender(keras.Model):
    """Sums the product over two axes, as the guide does: over the batch as well."""

    def __init__(self):
        super().__init__()
        decay = keras.regularizers.l2(1e-3)
        self.user = layers.Embedding(
            20, 4, embeddings_initializer="he_normal", embeddings_regularizer=decay
        )
        self.item = layers.Embedding(
            20, 4, embeddings_initializer="he_normal", embeddings_regularizer=decay
        )
        self.user_bias, self.item_bias = layers.Embedding(20, 1), layers.Embedding(20, 1)

    def call(self, inputs):
        user, item = inputs[:, 0], inputs[:, 1]
        product = ops.tensordot(self.user(user), self.item(item), 2)
        return ops.nn.sigmoid(product + self.user_bias(user) + self.item_bias(item))


def custom_model():
    return Recommender()


def optimizer():
    return keras.optimizers.Adam(0.01)


def eval_metrics_fn():
    return {"mae": keras.metrics.MeanAbsoluteError()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
