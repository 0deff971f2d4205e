r"""Folders of images, one for each class: bars and rings.

Run as a script, the file draws them. As a model file it has no input function: the field `image` is
the feature, and the name of the folder is the label.

    python examples/shapes.py
    elasticdl train --model_zoo=examples --model_def=shapes --data=demo/shapes/train \
        --validation_data=demo/shapes/test --minibatch_size=8 --num_epochs=6 \
        --output=demo/shapes_model
    elasticdl predict --trained_model=demo/shapes_model --data='demo/shapes/test/ring/*.png' \
        --output=demo/shapes_predicted.csv
"""

from pathlib import Path

import keras
import numpy as np
from PIL import Image, ImageDraw


def custom_model():
    """Return a small convolutional network, which scales pixels so that white is 0."""
    return keras.Sequential(
        [
            keras.Input((32, 32, 3), name="image"),
            keras.layers.Rescaling(-1 / 255, offset=1.0),
            keras.layers.Conv2D(16, 5, strides=2, activation="relu"),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(2),
        ]
    )


def data_schema():
    """Say to which size the images are resized."""
    return [
        {"name": "image", "shape": [32, 32, 3], "dtype": "float32"},
        {"name": "label", "shape": [], "dtype": "int64"},
    ]


loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def optimizer(learning_rate=0.003):
    """Return Adam."""
    return keras.optimizers.Adam(learning_rate)


def eval_metrics_fn():
    """Return the share of pictures that are recognised."""
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def draw(root):
    """Draw the pictures into folders below `root`."""
    random = np.random.default_rng(0)
    for part, number in (("train", 60), ("test", 15)):
        for name in ("bar", "ring"):
            folder = Path(root, part, name)
            folder.mkdir(parents=True, exist_ok=True)
            for i in range(number):
                picture = Image.new("RGB", (48, 32), "white")
                x, y = random.integers(0, [24, 12])
                place, colour = (x, y, x + 20, y + 16), tuple(random.integers(0, 200, 3))
                drawing = ImageDraw.Draw(picture)
                shape = drawing.rectangle if name == "bar" else drawing.ellipse
                shape(place, outline=colour, width=3)
                picture.save(folder / f"{i}.png")


if __name__ == "__main__":
    draw("demo/shapes")
