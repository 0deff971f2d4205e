"""Command line: a command parses, calls `api` and prints. One file per command group."""
