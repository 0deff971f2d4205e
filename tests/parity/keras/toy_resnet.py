"""A small ResNet: blocks of convolutions with `add`, trained with RMSprop."""

import keras
from keras import layers
from shared import fit, image_schema, images, named

GROUP = "Models"

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    inputs = keras.Input(shape=(8, 8, 2), name="img")
    x = layers.Conv2D(4, 3, activation="relu")(inputs)
    x = layers.Conv2D(6, 3, activation="relu")(x)
    block_1_output = layers.MaxPooling2D(2)(x)

    x = layers.Conv2D(6, 3, activation="relu", padding="same")(block_1_output)
    x = layers.Conv2D(6, 3, activation="relu", padding="same")(x)
    block_2_output = layers.add([x, block_1_output])

    x = layers.Conv2D(6, 3, activation="relu", padding="same")(block_2_output)
    x = layers.Conv2D(6, 3, activation="relu", padding="same")(x)
    block_3_output = layers.add([x, block_2_output])

    x = layers.Conv2D(6, 2, activation="relu")(block_3_output)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dense(16, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(3)(x), name="toy_resnet")


def optimizer():
    return keras.optimizers.RMSprop(1e-3)


def eval_metrics_fn():
    return {"acc": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer=optimizer(), loss=loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
