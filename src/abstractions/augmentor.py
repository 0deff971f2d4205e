"""Lets projects import `AugmentorBase` from `abstractions.augmentor`, as they already do."""

from elasticdl.components import AugmentorBase

__all__ = ["AugmentorBase"]
