"""Following a training from elsewhere: MLflow, TensorBoard. See `tracker.py`."""
