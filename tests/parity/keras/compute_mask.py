"""Layers from Keras' guide that create, split and use masks (`compute_mask`)."""

import keras
from keras import layers, ops
from shared import fit, tokens, tokens_schema

GROUP = "Sequences"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


class CustomEmbedding(layers.Layer):
    def __init__(self, input_dim, output_dim, mask_zero=False, **kwargs):
        super().__init__(**kwargs)
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.mask_zero = mask_zero

    def build(self, input_shape):
        self.embeddings = self.add_weight(
            shape=(self.input_dim, self.output_dim), initializer="random_normal", dtype="float32"
        )

    def call(self, inputs):
        return ops.take(self.embeddings, ops.cast(inputs, "int32"), axis=0)

    def compute_mask(self, inputs, mask=None):
        return ops.not_equal(inputs, 0) if self.mask_zero else None


class TemporalSplit(layers.Layer):
    """Split the input tensor into two tensors along the time dimension."""

    def call(self, inputs):
        return ops.split(inputs, 2, axis=1)

    def compute_mask(self, inputs, mask=None):
        return None if mask is None else ops.split(mask, 2, axis=1)


class TemporalSoftmax(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def call(self, inputs, mask=None):
        assert mask is not None
        broadcast_float_mask = ops.expand_dims(ops.cast(mask, "float32"), -1)
        inputs_exp = ops.exp(inputs) * broadcast_float_mask
        inputs_sum = ops.sum(inputs_exp * broadcast_float_mask, axis=1, keepdims=True)
        return inputs_exp / (inputs_sum + 1e-6)


def custom_model():
    inputs = keras.Input((10,), dtype="int64")
    x = CustomEmbedding(20, 4, mask_zero=True)(inputs)
    first, second = TemporalSplit()(x)
    first = layers.LSTM(4)(TemporalSoftmax()(layers.Dense(4)(first)))
    second = layers.GRU(4)(second)
    return keras.Model(inputs, layers.Dense(1)(layers.concatenate([first, second])))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
