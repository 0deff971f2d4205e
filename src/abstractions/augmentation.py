"""Old import path, kept for existing projects; `AugmentorBase` is in `elasticdl.components`."""

from elasticdl.components import AugmentorBase

__all__ = ["AugmentorBase"]
