"""Lets model files keep an old import: `AbstractDataReader`, base class of users' data readers."""

from __future__ import annotations

from elasticdl.dialects.readers import AbstractDataReader, Metadata

__all__ = ["AbstractDataReader", "Metadata"]
