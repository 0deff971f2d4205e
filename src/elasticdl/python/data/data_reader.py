"""Exists only for old imports: an earlier location of `python/data/reader/data_reader.py`."""

from __future__ import annotations

from elasticdl.dialects.readers import AbstractDataReader, Metadata

__all__ = ["AbstractDataReader", "Metadata"]
