"""Memory-efficient embeddings (Keras example): quotient and remainder, multiplied."""

import keras
import numpy as np
from keras import layers, ops
from shared import tokens_schema

GROUP = "Sequences"

data_schema = tokens_schema
loss = keras.losses.MeanSquaredError()


def input_fn(records):
    tokens = np.stack([record["tokens"] for record in records])
    features = {"user": [str(t[0]) for t in tokens], "item": [str(t[1]) for t in tokens]}
    labels = np.stack([record["y"] for record in records])
    return {name: np.array(each, object) for name, each in features.items()}, labels


class QREmbedding(layers.Layer):
    def __init__(self, vocabulary, embedding_dim, num_buckets, name=None):
        super().__init__(name=name)
        self.num_buckets = num_buckets
        self.index_lookup = layers.StringLookup(vocabulary=vocabulary, mask_token=None)
        self.q_embeddings = layers.Embedding(num_buckets, embedding_dim)
        self.r_embeddings = layers.Embedding(num_buckets, embedding_dim)

    def call(self, inputs):
        index = self.index_lookup(inputs)
        quotient = ops.floor_divide(index, self.num_buckets)
        remainder = ops.mod(index, self.num_buckets)
        return self.q_embeddings(quotient) * self.r_embeddings(remainder)


def custom_model():
    vocabulary = [str(i) for i in range(1, 20)]
    user = keras.Input((), name="user", dtype="string")
    item = keras.Input((), name="item", dtype="string")
    users = QREmbedding(vocabulary, 4, 5, name="users")(user)
    items = QREmbedding(vocabulary, 4, 5, name="items")(item)
    dot = layers.Dot(axes=1)([users, items])
    x = layers.Concatenate()([users, items, dot])
    return keras.Model({"user": user, "item": item}, layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.SGD(0.5)


def plain(data):
    import tensorflow as tf

    def batches(records):
        x, y = input_fn(records)
        return tf.data.Dataset.from_tensor_slices((x, y)).batch(data.batch_size)

    model = custom_model()
    model.compile(optimizer(), loss)
    history = model.fit(
        batches(data.train),
        validation_data=batches(data.validation),
        epochs=data.epochs,
        verbose=0,
        shuffle=False,
    )
    return history.history, model
