"""PixelCNN (Keras example): a layer that masks its convolution's kernel in each call."""

import keras
import numpy as np
from keras import layers, ops
from shared import fit, image_schema, images

GROUP = "Custom layers"
EXPECT = (
    "refused: in a plain script, validation masks the trained weight, too; here, workers share "
    "validation, which changes nothing; compute with `kernel * mask`"
)
REFUSAL = "changes its weight pixel_conv_layer/conv2d/kernel where it is called with training=False"

data_schema = image_schema
loss = "binary_crossentropy"


def input_fn(records):
    # Round all pixel values less than 33% of the max 256 value to 0
    # anything above this value gets rounded up to 1 so that all values are either 0 or 1
    x, _ = images(records)
    data = np.where(x[..., :1] < (0.33 * 2), 0, 1).astype("float32")
    return data, data


class PixelConvLayer(layers.Layer):
    def __init__(self, mask_type, **kwargs):
        super().__init__()
        self.mask_type = mask_type
        self.conv = layers.Conv2D(**kwargs)

    def build(self, input_shape):
        # Build the conv2d layer to initialize kernel variables
        self.conv.build(input_shape)
        # Use the initialized kernel to create the mask
        kernel_shape = ops.shape(self.conv.kernel)
        self.mask = np.zeros(shape=kernel_shape)
        self.mask[: kernel_shape[0] // 2, ...] = 1.0
        self.mask[kernel_shape[0] // 2, : kernel_shape[1] // 2, ...] = 1.0
        if self.mask_type == "B":
            self.mask[kernel_shape[0] // 2, kernel_shape[1] // 2, ...] = 1.0

    def call(self, inputs):
        self.conv.kernel.assign(self.conv.kernel * self.mask)
        return self.conv(inputs)


class ResidualBlock(layers.Layer):
    def __init__(self, filters):
        super().__init__()
        self.conv1 = layers.Conv2D(filters=filters, kernel_size=1, activation="relu")
        self.pixel_conv = PixelConvLayer(
            mask_type="B",
            filters=filters // 2,
            kernel_size=3,
            activation="relu",
            padding="same",
        )
        self.conv2 = layers.Conv2D(filters=filters, kernel_size=1, activation="relu")

    def call(self, inputs):
        x = self.conv1(inputs)
        x = self.pixel_conv(x)
        x = self.conv2(x)
        return layers.add([inputs, x])


def custom_model():
    inputs = keras.Input(shape=(8, 8, 1), batch_size=None)
    x = PixelConvLayer(mask_type="A", filters=4, kernel_size=7, activation="relu", padding="same")(
        inputs
    )
    x = ResidualBlock(filters=4)(x)
    x = PixelConvLayer(
        mask_type="B", filters=4, kernel_size=1, strides=1, activation="relu", padding="valid"
    )(x)
    out = layers.Conv2D(filters=1, kernel_size=1, strides=1, activation="sigmoid", padding="valid")(
        x
    )
    return keras.Model(inputs, out)


def optimizer():
    return keras.optimizers.Adam(learning_rate=0.0005)


def plain(data):
    model = custom_model()
    model.compile(optimizer=optimizer(), loss=loss)
    return fit(data, model, input_fn)
