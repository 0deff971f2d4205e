"""Old import path, kept for existing projects; `ModelBuilderBase` is in `elasticdl.components`."""

from elasticdl.components import ModelBuilderBase

__all__ = ["ModelBuilderBase"]
