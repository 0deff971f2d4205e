"""Lets projects import `EvaluatorBase` from `abstractions.evaluator`, as they already do."""

from elasticdl.components import EvaluatorBase

__all__ = ["EvaluatorBase"]
