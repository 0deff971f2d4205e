"""Keeps an import path of existing projects; `PreprocessorBase` is in `elasticdl.components`."""

from elasticdl.components import PreprocessorBase

__all__ = ["PreprocessorBase"]
