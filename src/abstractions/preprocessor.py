"""Lets projects import `PreprocessorBase` from `abstractions.preprocessor`, as they already do."""

from elasticdl.components import PreprocessorBase

__all__ = ["PreprocessorBase"]
