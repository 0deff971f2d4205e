"""Checks and stand-ins to test your own readers, trackers and models with; needs no pytest."""
