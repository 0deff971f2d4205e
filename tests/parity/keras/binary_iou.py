"""BinaryIoU, IoU."""

import keras
import numpy as np
from shared import fit, image_schema, images, named

GROUP = "Metrics"

data_schema = image_schema
loss = keras.losses.BinaryCrossentropy()


def input_fn(records):
    x, _ = images(records)
    return x, np.float32(x[..., :1] + x[..., 1:] > 1.2)


def custom_model():
    return keras.Sequential(
        [keras.Input((8, 8, 2)), keras.layers.Conv2D(1, 3, padding="same", activation="sigmoid")]
    )


def optimizer():
    return keras.optimizers.SGD(0.5)


def eval_metrics_fn():
    return {
        "both": keras.metrics.BinaryIoU(target_class_ids=[0, 1], threshold=0.5),
        "one": keras.metrics.BinaryIoU(target_class_ids=[1], threshold=0.6),
        "zero": keras.metrics.IoU(num_classes=2, target_class_ids=[0]),
    }


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
