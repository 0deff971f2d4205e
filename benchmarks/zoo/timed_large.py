"""The network of `large.py`, with a stopwatch on each step."""

import stopwatch
from large import custom_model, data_schema, input_fn, loss, optimizer

__all__ = ["custom_model", "data_schema", "input_fn", "loss", "optimizer", "stopwatch"]
