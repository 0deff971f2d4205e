"""Exists only for old imports in model files; nothing of ElasticDL itself is here."""
