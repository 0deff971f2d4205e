"""Import path of existing `abstractions` projects; see `elasticdl.sessions.orchestrator`."""

from elasticdl.sessions.orchestrator import Orchestrator

__all__ = ["Orchestrator"]
