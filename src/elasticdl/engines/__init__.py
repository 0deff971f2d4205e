"""Engines: run a job in this process, on elastic workers, or with the parties of a federation."""
