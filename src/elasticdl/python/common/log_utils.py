"""Lets model files keep an old import, `elasticdl.python.common.log_utils.default_logger`."""

from __future__ import annotations

import logging

default_logger = logging.getLogger("elasticdl.model")
