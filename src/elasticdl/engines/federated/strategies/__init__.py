"""Fusions: strategies that combine the parties' updates into the next global model."""
