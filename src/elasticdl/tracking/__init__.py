"""Trackers, which show training runs in other tools: MLflow, TensorBoard."""
