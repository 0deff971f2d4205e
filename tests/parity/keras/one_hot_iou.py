"""OneHotIoU of a segmentation with weighted pixels and an ignored class."""

import keras
import numpy as np
from keras import layers
from shared import image_schema, named

GROUP = "Metrics"

data_schema = image_schema
loss = keras.losses.CategoricalCrossentropy(from_logits=True)


def input_fn(records):
    """Return (image, one-hot class of each pixel, weight of each pixel)."""
    image = np.stack([record["image"] for record in records])
    kind = np.int64(image[..., 1] > 0.3) + (image[..., 1] > 0.7)
    return image, np.eye(3, dtype=np.float32)[kind], image[..., 0]


def custom_model():
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(6, 3, padding="same", activation="relu")(inputs)
    return keras.Model(inputs, layers.Conv2D(3, 1)(x))


def optimizer():
    return keras.optimizers.Adam(0.03)


def eval_metrics_fn():
    return {"iou": keras.metrics.OneHotIoU(3, [0, 2])}


def weighted_metrics_fn():
    return {"weighted_iou": keras.metrics.OneHotIoU(3, [1, 2], ignore_class=0, dtype="float32")}


def plain(data):
    model = custom_model()
    model.compile(
        optimizer(),
        loss,
        metrics=named(eval_metrics_fn()),
        weighted_metrics=named(weighted_metrics_fn()),
    )
    x, y, weights = input_fn(data.train)
    history = model.fit(
        x,
        y,
        sample_weight=weights,
        batch_size=data.batch_size,
        epochs=data.epochs,
        shuffle=False,
        validation_data=input_fn(data.validation),
        verbose=0,
    )
    return history.history, model
