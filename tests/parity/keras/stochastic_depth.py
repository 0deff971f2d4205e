"""A compact transformer (Keras example): stochastic depth, sequence pooling, and a seed."""

import keras
from keras import layers, ops
from shared import fit, image_schema, images, named

GROUP = "Randomness in layers"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"

keras.utils.set_random_seed(42)
data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class StochasticDepth(layers.Layer):
    """Leaves out a branch for some of the examples."""

    def __init__(self, drop_probability, **kwargs):
        super().__init__(**kwargs)
        self.drop_probability = drop_probability
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, x, training=None):
        if not training:
            return x
        keep = 1 - self.drop_probability
        shape = (ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        return (x / keep) * ops.floor(
            keep + keras.random.uniform(shape, 0, 1, seed=self.seed_generator)
        )


class SequencePooling(layers.Layer):
    def __init__(self):
        super().__init__()
        self.attention = layers.Dense(1)

    def call(self, x):
        weights = ops.transpose(ops.softmax(self.attention(x), axis=1), axes=(0, 2, 1))
        return ops.squeeze(ops.matmul(weights, x), -2)


def custom_model():
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(inputs)
    x = layers.Reshape((16, 4))(x)
    for probability in (0.1, 0.5):
        one = layers.LayerNormalization(epsilon=1e-5)(x)
        attended = layers.MultiHeadAttention(num_heads=2, key_dim=4, dropout=0.1)(one, one)
        x = layers.Add()([StochasticDepth(probability)(attended), x])
        two = layers.Dense(4, activation=keras.activations.gelu)(layers.LayerNormalization()(x))
        x = layers.Add()([StochasticDepth(probability)(two), x])
    return keras.Model(inputs, layers.Dense(3)(SequencePooling()(x)))


def optimizer():
    return keras.optimizers.AdamW(learning_rate=0.01, weight_decay=1e-4)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
