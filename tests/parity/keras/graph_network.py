"""A graph network (Keras example): layers hold the graph, an example is the index of a node."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit

GROUP = "Models"

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
_random = np.random.default_rng(5)
NODES = _random.normal(size=(20, 6)).astype("float32")
EDGES = _random.integers(0, 20, size=(2, 60))
EDGE_WEIGHTS = _random.uniform(size=60).astype("float32")


def data_schema():
    return [
        {"name": "tokens", "shape": [10], "dtype": "int64"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def input_fn(records):
    node = np.stack([record["tokens"][0] for record in records])
    return node, np.stack([record["label"][0] for record in records])


def feed_forward():
    return keras.Sequential(
        [layers.BatchNormalization(), layers.Dense(6, activation="gelu"), layers.Dense(6)]
    )


class GraphConvolution(layers.Layer):
    def __init__(self):
        super().__init__()
        self.prepare, self.update = feed_forward(), feed_forward()

    def call(self, nodes, training=None):
        messages = ops.take(nodes, EDGES[1], axis=0)
        messages = self.prepare(messages, training=training) * EDGE_WEIGHTS[:, None]
        gathered = ops.segment_sum(messages, EDGES[0], num_segments=20)
        together = self.update(ops.concatenate([nodes, gathered], axis=1), training=training)
        return ops.normalize(together)


class NodeClassifier(keras.Model):
    def __init__(self):
        super().__init__()
        self.nodes = ops.convert_to_tensor(NODES)
        self.before, self.after = feed_forward(), feed_forward()
        self.one, self.two = GraphConvolution(), GraphConvolution()
        self.logits = layers.Dense(3)

    def call(self, index, training=None):
        x = self.before(self.nodes, training=training)
        x = self.one(x, training=training) + x
        x = self.two(x, training=training) + x
        x = self.after(x, training=training)
        return self.logits(ops.take(x, ops.reshape(index, (-1,)), axis=0))


def custom_model():
    return NodeClassifier()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
