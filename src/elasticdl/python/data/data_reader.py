"""Lets old code import from here the names in `python/data/reader/data_reader.py`."""

from __future__ import annotations

from elasticdl.dialects.readers import AbstractDataReader, Metadata

__all__ = ["AbstractDataReader", "Metadata"]
