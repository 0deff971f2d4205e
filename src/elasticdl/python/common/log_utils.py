"""Exists only for old imports: `from elasticdl.python.common.log_utils import default_logger`."""

from __future__ import annotations

import logging

default_logger = logging.getLogger("elasticdl.model")
