"""Keras 3 on TensorFlow: the trainer and its parts.

trainer.py          the steps
split_checks.py     checks before workers sum the gradients of parts of a batch
model_calls.py      calls of the model that leave its state as it was
step_functions.py   how they are compiled and called
loss.py             the loss, and what it is divided by
saved_variables.py  the variables in checkpoints, by name
optimizers.py       creation and checks of optimizers
determinism.py      deterministic operations
seeds.py            the random numbers of a step
metrics.py          metrics as states that are summed over batches and workers
inputs.py           how a batch's features are passed to a model
labels.py           labels: numpy arrays for the user's functions, tensors for TensorFlow
hooks.py            calls the user's Keras callbacks
callback_checkpoint.py   saves and restores the state of callbacks
export.py           exports for serving
"""

# It sets where autograph writes its files, before a function is traced.
import elasticdl.data.tensorflow  # noqa: F401
from elasticdl.training.keras.trainer import KerasTrainer

__all__ = ["KerasTrainer"]
