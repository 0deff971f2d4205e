"""An old module name; see `elasticdl.components`."""

from elasticdl.components import ModelBuilderBase

__all__ = ["ModelBuilderBase"]
