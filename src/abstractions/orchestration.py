"""Lets projects import `Orchestrator` from `abstractions.orchestration`, as they already do."""

from elasticdl.sessions.orchestrator import Orchestrator

__all__ = ["Orchestrator"]
