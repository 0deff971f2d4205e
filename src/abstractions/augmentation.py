"""Lets projects import `AugmentorBase` from `abstractions.augmentation`, as they already do."""

from elasticdl.components import AugmentorBase

__all__ = ["AugmentorBase"]
