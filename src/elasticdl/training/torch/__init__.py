"""PyTorch: the trainer and its parts.

trainer.py      the steps
determinism.py  seeds and deterministic kernels
inputs.py       how a batch's features are passed to a module
outputs.py      nested outputs of a module: dicts, namedtuples, dataclasses
losses.py       the loss of a batch, and the divisor of its mean
buffers.py      persistent buffers of a module: BatchNorm's running statistics
statistics.py   how changes of buffers are combined over workers
optimizer.py    the user's optimizer, and its state as named arrays
hook_memory.py      the state of hooks of the optimizer and of gradients
function_memory.py  what a user's function remembers from one call to the next
value_codec.py      values that functions keep, as arrays and back
schedulers.py   learning rate schedulers: when they step, and their state
scheduler_trial.py  tests whether a user's own scheduler can be restored from its state
clipping.py     gradient clipping
averages.py     averages of the weights: EMA, SWA
precision.py    steps in bfloat16 and float16
metrics.py      metrics as states that are summed over batches and workers
parameter_moves.py  detects that forward writes into parameters
refusals.py     rejects model classes with features that would be ignored, lost or summed wrongly
untracked_state.py      detects state that checkpoints do not contain
structure.py        rejects parameters and buffers that are added or replaced in training
hooks.py        the events of a run: callbacks and schedulers
callback_hooks.py   saves the state of hooks that callbacks register
tensors.py      arrays as tensors and back
export.py       exports for serving
"""

from elasticdl.training.torch.trainer import TorchTrainer

__all__ = ["TorchTrainer"]
