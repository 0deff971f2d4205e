"""Results of a run: its output folder, checkpoints and the trained model."""
