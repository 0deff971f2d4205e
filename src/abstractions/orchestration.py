"""Keeps an import path of existing projects; see `elasticdl.sessions.orchestrator`."""

from elasticdl.sessions.orchestrator import Orchestrator

__all__ = ["Orchestrator"]
