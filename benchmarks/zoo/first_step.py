"""The CNN of `cnn.py`, saying when its first step was done."""

import os
import time
from pathlib import Path

import keras
from cnn import custom_model, data_schema, input_fn, loss, optimizer

__all__ = ["callbacks", "custom_model", "data_schema", "input_fn", "loss", "optimizer"]


class FirstStep(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        Path(os.environ["FIRST_STEP_FILE"]).write_text(str(time.time()))
        self.model.stop_training = True


def callbacks():
    return [FirstStep()]
