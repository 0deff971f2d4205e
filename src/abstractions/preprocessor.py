"""Old import path, kept for existing projects; `PreprocessorBase` is in `elasticdl.components`."""

from elasticdl.components import PreprocessorBase

__all__ = ["PreprocessorBase"]
