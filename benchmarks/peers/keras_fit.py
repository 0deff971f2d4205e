"""A plain Keras script: the model of a benchmark zoo file and `model.fit`.

    keras_fit.py MODEL NUM_RECORDS MINIBATCH_SIZE NUM_EPOCHS [first_step | FILE.tfrecord]

The data are arrays in memory, or read from a TFRecord file as TensorFlow's guide does it.
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


def records(zoo, file, num_records, minibatch_size):
    import tensorflow as tf

    spec = {
        "image": tf.io.FixedLenFeature(zoo.SHAPE, tf.float32),
        "label": tf.io.FixedLenFeature([1], tf.int64),
    }

    def parse(record):
        example = tf.io.parse_single_example(record, spec)
        return example["image"], example["label"]

    dataset = tf.data.TFRecordDataset(file).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.shuffle(min(num_records, 4096)).batch(minibatch_size).prefetch(tf.data.AUTOTUNE)


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
    if sys.argv[-1].endswith(".tfrecord"):
        dataset = records(zoo, sys.argv[-1], num_records, minibatch_size)
        model.fit(dataset, epochs=num_epochs, callbacks=[clock])
    else:
        model.fit(x, y, batch_size=minibatch_size, epochs=num_epochs, callbacks=[clock])
    print("\nepochs", *clock.epochs)


main()
