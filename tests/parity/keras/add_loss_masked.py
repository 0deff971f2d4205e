"""`add_loss` with a mask, in a layer used twice, in training only; a regularized frozen layer."""

import keras
from shared import fit, tokens, tokens_schema

GROUP = "Regularization"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


class Quiet(keras.layers.Layer):
    """Punishes what is not masked, as a mean over examples."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True

    def call(self, x, training=False, mask=None):
        if training:
            size = keras.ops.sum(keras.ops.square(x), axis=-1)
            if mask is not None:
                kept = keras.ops.cast(mask, x.dtype)
                size = size * kept
            self.add_loss(0.1 * keras.ops.mean(size))
        return x


def custom_model():
    inputs = keras.Input((10,), dtype="int64")
    x = keras.layers.Embedding(20, 4, mask_zero=True)(inputs)
    quiet = Quiet()
    x = quiet(quiet(x) * 0.5)
    x = keras.layers.GlobalAveragePooling1D()(x)
    frozen = keras.layers.Dense(5, kernel_regularizer="l2", activity_regularizer="l2")
    frozen.trainable = False
    x = frozen(x)
    return keras.Model(inputs, keras.layers.Dense(1)(x))


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
