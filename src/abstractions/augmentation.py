"""An old module name; see `elasticdl.components`."""

from elasticdl.components import AugmentorBase

__all__ = ["AugmentorBase"]
