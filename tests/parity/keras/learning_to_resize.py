"""Learning to resize (Keras example): a trainable resizer in front of a classifier."""

import keras
from keras import layers
from shared import fit, image_schema, images, named

GROUP = "Models"
EXPECT = {"two workers": "differs: each worker normalizes with the statistics of its own minibatch"}

INP_SIZE, TARGET_SIZE, INTERPOLATION = (8, 8), (6, 6), "bilinear"

data_schema = image_schema
loss = keras.losses.CategoricalCrossentropy(label_smoothing=0.1)


def input_fn(records):
    x, label = images(records)
    return x * 255, keras.utils.to_categorical(label, 3)


def conv_block(x, filters, kernel_size, strides, activates=True):
    x = layers.Conv2D(filters, kernel_size, strides, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    if activates:
        x = layers.LeakyReLU(0.2)(x)
    return x


def res_block(x):
    inputs = x
    x = conv_block(x, 4, 3, 1)
    x = conv_block(x, 4, 3, 1, activates=False)
    return layers.Add()([inputs, x])


def get_learnable_resizer(filters=4, num_res_blocks=2, interpolation=INTERPOLATION):
    inputs = layers.Input(shape=[None, None, 2])

    # First, perform naive resizing.
    naive_resize = layers.Resizing(*TARGET_SIZE, interpolation=interpolation)(inputs)

    # First convolution block without batch normalization.
    x = layers.Conv2D(filters=filters, kernel_size=7, strides=1, padding="same")(inputs)
    x = layers.LeakyReLU(0.2)(x)

    # Second convolution block with batch normalization.
    x = layers.Conv2D(filters=filters, kernel_size=1, strides=1, padding="same")(x)
    x = layers.LeakyReLU(0.2)(x)
    x = layers.BatchNormalization()(x)

    # Intermediate resizing as a bottleneck.
    bottleneck = layers.Resizing(*TARGET_SIZE, interpolation=interpolation)(x)

    # Residual passes.
    x = res_block(bottleneck)
    for _ in range(1, num_res_blocks):
        x = res_block(x)

    # Projection.
    x = layers.Conv2D(filters=filters, kernel_size=3, strides=1, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)

    # Skip connection.
    x = layers.Add()([bottleneck, x])

    # Final resized image.
    x = layers.Conv2D(filters=2, kernel_size=7, strides=1, padding="same")(x)
    final_resize = layers.Add()([naive_resize, x])
    return keras.Model(inputs, final_resize, name="learnable_resizer")


def backbone():
    inputs = layers.Input((*TARGET_SIZE, 2))
    x = layers.Conv2D(4, 3, activation="relu")(inputs)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(x), name="backbone")


def custom_model():
    inputs = layers.Input((*INP_SIZE, 2))
    x = layers.Rescaling(scale=1.0 / 255)(inputs)
    x = get_learnable_resizer()(x)
    return keras.Model(inputs, backbone()(x))


def optimizer():
    return keras.optimizers.SGD()


def eval_metrics_fn():
    return {"accuracy": keras.metrics.CategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(loss=loss, optimizer=optimizer(), metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
