"""Trainers compute training steps of Keras and PyTorch models; `trainer.py` is the protocol."""
