"""Import path of existing `abstractions` projects; re-exports names of `elasticdl.components`."""

from elasticdl.components import ModelBuilderBase

__all__ = ["ModelBuilderBase"]
