"""Command line `elasticdl`: each command parses its options, calls `api` and prints the result.

There is one file per command or group of commands; `main.py` is the entry point.
"""
