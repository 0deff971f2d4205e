"""Keeps an import path of existing projects; `ModelBuilderBase` is in `elasticdl.components`."""

from elasticdl.components import ModelBuilderBase

__all__ = ["ModelBuilderBase"]
