"""Trainers, which compute training steps: `trainer.py` is the protocol, a folder per framework."""
