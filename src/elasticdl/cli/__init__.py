"""The command line: a command parses, calls `api`, prints. One file a command group."""
