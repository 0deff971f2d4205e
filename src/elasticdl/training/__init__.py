"""Training steps, by framework: `trainer.py` is the protocol, each folder a framework."""
