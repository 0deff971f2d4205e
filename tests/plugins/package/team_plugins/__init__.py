"""Plugins as another package would have them: one of each kind."""
