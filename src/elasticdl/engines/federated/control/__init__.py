"""User commands to a running aggregator or party on the same machine."""
