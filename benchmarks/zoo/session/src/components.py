"""The components of a session whose data are indexed: a small MLP on random numbers."""

import os
import time
from pathlib import Path

import keras
import numpy as np

from abstractions import DataLoaderBase, ModelBuilderBase, PreprocessorBase


class Batches(keras.utils.PyDataset):
    def __init__(self, number):
        super().__init__()
        self.number = number
        rng = np.random.default_rng(1)
        self.x = rng.normal(size=(4096, 64)).astype("float32")
        self.y = rng.integers(0, 10, 4096)
        self.weights = np.ones(32, np.float32)

    def __len__(self):
        return self.number

    def __getitem__(self, index):
        start = index * 32 % 4096
        return self.x[start : start + 32], self.y[start : start + 32], self.weights


class Loader(DataLoaderBase):
    def _set_defaults(self):
        pass

    def _load_params(self, config):
        pass

    def create_training_generator(self):
        number = int(os.environ["NUM_BATCHES"])
        return Batches(number), number * 32

    def create_validation_generator(self):
        return Batches(4), 128

    def create_test_generator(self):
        return iter(()), 0


class Preprocessor(PreprocessorBase):
    def _set_defaults(self):
        pass

    def _load_params(self, config):
        pass

    def add_preprocess(self, generator, n_data_points):
        return generator, len(generator)

    def add_image_preprocess(self, generator):
        return generator

    def add_label_preprocess(self, generator):
        return generator

    def batchify(self, generator, n_data_points):
        return generator, len(generator)


class FirstStep(keras.callbacks.Callback):
    """Writes when the first step of this process was done."""

    def __init__(self, file):
        super().__init__()
        self.file = Path(file)

    def on_train_batch_end(self, batch, logs=None):
        if not self.file.exists():
            new = self.file.with_suffix(".new")
            new.write_text(str(time.time()))
            new.rename(self.file)


class Builder(ModelBuilderBase):
    def _set_defaults(self):
        pass

    def _load_params(self, config):
        pass

    def get_callbacks(self):
        file = os.environ.get("FIRST_STEP")
        return [FirstStep(file)] if file else []

    def get_compiled_model(self):
        model = keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        )
        model.compile(
            "adam",
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model
