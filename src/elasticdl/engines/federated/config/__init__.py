"""YAML configs of an aggregator and its parties, read into settings and jobs."""
