"""Lets model files keep an old import, `elasticdl.python.common.constants.Mode`."""

from __future__ import annotations

from elasticdl.definition import Mode

__all__ = ["Mode", "ODPSConfig"]


class ODPSConfig:
    """Names of environment variables that locate a MaxCompute table; old model files read them."""

    PROJECT_NAME = "MAXCOMPUTE_PROJECT"
    ACCESS_ID = "MAXCOMPUTE_AK"
    ACCESS_KEY = "MAXCOMPUTE_SK"
    ENDPOINT = "MAXCOMPUTE_ENDPOINT"
    TUNNEL_ENDPOINT = "MAXCOMPUTE_TUNNEL_ENDPOINT"
