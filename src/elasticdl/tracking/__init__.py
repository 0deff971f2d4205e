"""Trackers that show a training elsewhere: MLflow, TensorBoard. See `tracker.py`."""
