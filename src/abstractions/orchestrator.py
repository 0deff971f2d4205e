"""Lets projects import `Orchestrator` from `abstractions.orchestrator`, as they already do."""

from elasticdl.sessions.orchestrator import Orchestrator

__all__ = ["Orchestrator"]
