"""Compatibility module: re-exports names of `elasticdl.sessions.orchestrator`."""

from elasticdl.sessions.orchestrator import Orchestrator

__all__ = ["Orchestrator"]
