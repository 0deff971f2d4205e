"""Old import path, kept for existing projects; see `elasticdl.sessions.orchestrator`."""

from elasticdl.sessions.orchestrator import Orchestrator

__all__ = ["Orchestrator"]
