"""Lets old code import `AbstractDataReader`, the base class of users' data readers, from here."""

from __future__ import annotations

from elasticdl.dialects.readers import AbstractDataReader, Metadata

__all__ = ["AbstractDataReader", "Metadata"]
