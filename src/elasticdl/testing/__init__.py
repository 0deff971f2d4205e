"""Checks and fakes for testing your own readers, trackers and models; works without pytest."""
