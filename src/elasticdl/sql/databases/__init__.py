"""Kinds of databases: one file each, implementing the protocol of `sql/database_interface.py`."""
