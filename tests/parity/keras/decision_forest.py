"""A neural decision forest (Keras example): soft trees, each on randomly chosen features."""

import keras
import numpy as np
from keras import layers, ops
from shared import classes, fit, named, table_schema

GROUP = "Models"
EXPECT = {"two workers": "differs: each worker normalizes with the statistics of its own minibatch"}

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy()
DEPTH = 2


class Tree(keras.Model):
    def __init__(self, depth, num_features):
        super().__init__()
        self.depth, self.num_leaves = depth, 2**depth
        used = np.random.choice(np.arange(num_features), 5, replace=False)  # noqa: NPY002
        self.used_features_mask = np.eye(num_features)[used].astype("float32")
        self.pi = self.add_weight(
            initializer=keras.initializers.RandomNormal(), shape=[self.num_leaves, 3], name="pi"
        )
        self.decision = layers.Dense(self.num_leaves, activation="sigmoid", name="decision")

    def call(self, features):
        size = ops.shape(features)[0]
        features = ops.matmul(features, ops.transpose(self.used_features_mask))
        decisions = ops.expand_dims(self.decision(features), axis=2)
        decisions = layers.concatenate([decisions, 1 - decisions], axis=2)
        mu = ops.ones([size, 1, 1])
        begin, end = 1, 2
        for level in range(self.depth):
            mu = ops.reshape(mu, [size, -1, 1])
            mu = ops.tile(mu, (1, 1, 2)) * decisions[:, begin:end, :]
            begin, end = end, end + 2 ** (level + 1)
        return ops.matmul(ops.reshape(mu, [size, self.num_leaves]), ops.softmax(self.pi))


class Forest(keras.Model):
    def __init__(self):
        super().__init__()
        self.ensemble = [Tree(DEPTH, 8) for _ in range(3)]

    def call(self, inputs):
        outputs = ops.zeros([ops.shape(inputs)[0], 3])
        for tree in self.ensemble:
            outputs += tree(inputs)
        return outputs / len(self.ensemble)


def custom_model():
    inputs = keras.Input((8,))
    return keras.Model(inputs, Forest()(layers.BatchNormalization()(inputs)))


def optimizer():
    return keras.optimizers.Adam(0.01)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
