"""Keeps an import path of existing projects; `EvaluatorBase` is in `elasticdl.components`."""

from elasticdl.components import EvaluatorBase

__all__ = ["EvaluatorBase"]
