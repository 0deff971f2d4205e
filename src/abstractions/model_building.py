"""Lets projects import `ModelBuilderBase` from `abstractions.model_building`, as they already do."""

from elasticdl.components import ModelBuilderBase

__all__ = ["ModelBuilderBase"]
