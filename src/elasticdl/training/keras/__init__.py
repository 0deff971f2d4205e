"""Keras 3 on TensorFlow: the trainer, and what of Keras it needs taken apart.

trainer.py          the steps
step_functions.py   how they are compiled and called
loss.py             what is made small, and what it is divided by
optimizers.py       what makes the updates
seeds.py            what a step draws
metrics.py          metrics as states that add up
inputs.py           how a batch's features are handed to a model
labels.py           labels that are numpy arrays to the user and tensors to TensorFlow
hooks.py            the user's Keras callbacks
export.py           what serving needs
"""

# It says where autograph writes, before a function is traced.
import elasticdl.data.tensorflow  # noqa: F401
from elasticdl.training.keras.trainer import KerasTrainer

__all__ = ["KerasTrainer"]
