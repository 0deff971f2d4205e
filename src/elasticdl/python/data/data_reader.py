"""Exists only for old imports: the first place of `elasticdl.python.data.reader.data_reader`."""

from __future__ import annotations

from elasticdl.dialects.readers import AbstractDataReader, Metadata

__all__ = ["AbstractDataReader", "Metadata"]
