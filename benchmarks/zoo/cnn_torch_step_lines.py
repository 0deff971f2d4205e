"""The CNN of `cnn_torch.py`, in processes that tell of each step."""

from cnn_torch import custom_model, data_schema, input_fn, loss, optimizer
from step_lines import tell_commits

__all__ = ["custom_model", "data_schema", "input_fn", "loss", "optimizer"]

tell_commits()
