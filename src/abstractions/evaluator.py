"""Old import path, kept for existing projects; `EvaluatorBase` is in `elasticdl.components`."""

from elasticdl.components import EvaluatorBase

__all__ = ["EvaluatorBase"]
