"""The kinds of databases: one file each, behind the protocol of `sql/database.py`."""
