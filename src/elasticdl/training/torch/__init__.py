"""PyTorch: the trainer, and what of a module and an optimizer it needs taken apart.

trainer.py      the steps
determinism.py  what is drawn and computed is the same each time
inputs.py       how a batch's features are handed to a module
outputs.py      what a module returns: dicts, namedtuples, dataclasses
losses.py       the loss of a batch, and what its mean divides by
buffers.py      what a module keeps beside its parameters: BatchNorm's running statistics
statistics.py   how changes of buffers add up over workers
optimizer.py    the user's optimizer, and what it remembers as named arrays
memory.py       what the hooks of an optimizer remember
schedulers.py   learning rate schedulers: when they step, and their state
clipping.py     gradients of an update, bounded
averages.py     averages of the weights: EMA, SWA
precision.py    steps in bfloat16 and float16
metrics.py      metrics as states that add up
refusals.py     what would be ignored, lost or summed up wrongly, by the model's class
outside.py      memory that is in no checkpoint, found by trying
hooks.py        the moments of a run: the end of an epoch, for schedulers
tensors.py      arrays as tensors and back
export.py       what serving needs
"""

from elasticdl.training.torch.trainer import TorchTrainer

__all__ = ["TorchTrainer"]
