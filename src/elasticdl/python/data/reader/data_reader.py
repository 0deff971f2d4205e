"""Exists only for old imports: the base class of the reader of a model's `custom_data_reader`."""

from __future__ import annotations

from elasticdl.dialects.readers import AbstractDataReader, Metadata

__all__ = ["AbstractDataReader", "Metadata"]
