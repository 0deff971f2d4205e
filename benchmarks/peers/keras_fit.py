"""A plain Keras script: the model of a benchmark zoo file, arrays in memory, `model.fit`.

    keras_fit.py MODEL NUM_RECORDS MINIBATCH_SIZE NUM_EPOCHS [first_step]

Prints the seconds of each epoch, or with `first_step` the clock at the end of the first step.
"""

import importlib
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "zoo"))

import keras
import numpy as np


class Clock(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.begin = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(time.perf_counter() - self.begin)


class FirstStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        print(time.time(), flush=True)
        self.model.stop_training = True


def main():
    name, num_records, minibatch_size, num_epochs = sys.argv[1], *map(int, sys.argv[2:5])
    zoo = importlib.import_module(name)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_records, *zoo.SHAPE)).astype("float32")
    y = rng.integers(0, zoo.CLASSES, (num_records, 1))
    keras.utils.set_random_seed(0)
    model = zoo.custom_model()
    model.compile(zoo.optimizer(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    if "first_step" in sys.argv:
        model.fit(x, y, batch_size=minibatch_size, epochs=1, verbose=0, callbacks=[FirstStep()])
        return
    clock = Clock()
    model.fit(x, y, batch_size=minibatch_size, epochs=num_epochs, callbacks=[clock])
    print("\nepochs", *clock.epochs)


main()
