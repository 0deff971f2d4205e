"""PyTorch: the trainer, and what of a module and an optimizer it needs taken apart.

trainer.py      the steps
determinism.py  what is drawn and computed is the same each time
inputs.py       how a batch's features are handed to a module
buffers.py      what a module keeps beside its parameters: BatchNorm's running statistics
optimizer.py    the user's optimizer, and what it remembers as named arrays
metrics.py      metrics as states that add up
hooks.py        the moments of a run, which nobody listens to
tensors.py      arrays as tensors and back
export.py       what serving needs
"""

from elasticdl.training.torch.trainer import TorchTrainer

__all__ = ["TorchTrainer"]
