"""Exists only for old imports: `AbstractDataReader`, the base class of users' data readers."""

from __future__ import annotations

from elasticdl.dialects.readers import AbstractDataReader, Metadata

__all__ = ["AbstractDataReader", "Metadata"]
