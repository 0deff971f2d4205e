"""Exists only for old imports: what a model file's `custom_data_reader` is derived from."""

from __future__ import annotations

from elasticdl.dialects.readers import AbstractDataReader, Metadata

__all__ = ["AbstractDataReader", "Metadata"]
