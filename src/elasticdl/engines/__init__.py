"""Engines: run a job in this process (`in_process`), on workers (`elastic`), or across parties."""
