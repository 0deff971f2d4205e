"""What a run leaves behind: its output folder, checkpoints and the TrainedModel."""
