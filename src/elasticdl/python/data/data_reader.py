"""Lets old code import from here what is now in `python/data/reader/data_reader.py`."""

from __future__ import annotations

from elasticdl.dialects.readers import AbstractDataReader, Metadata

__all__ = ["AbstractDataReader", "Metadata"]
