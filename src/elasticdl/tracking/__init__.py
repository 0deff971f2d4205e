"""Trackers that show training runs in other tools: MLflow, TensorBoard. See `tracker.py`."""
