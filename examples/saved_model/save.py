"""Writes `digits.keras`, as the author of a model would: see `model.yml`."""

from pathlib import Path

import keras

model = keras.Sequential(
    [
        keras.Input((28, 28), name="image"),
        keras.layers.Rescaling(1 / 255),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(optimizer="adam", loss="categorical_crossentropy", metrics=["accuracy"])
model.save(Path(__file__).with_name("digits.keras"))
