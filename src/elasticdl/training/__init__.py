"""Trainers compute training steps of Keras and PyTorch models; their protocol is `trainer.py`."""
