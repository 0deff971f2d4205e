"""An old module name; see `elasticdl.sessions.orchestrator`."""

from elasticdl.sessions.orchestrator import Orchestrator

__all__ = ["Orchestrator"]
