"""Old import path, kept for existing projects; the trainers are in `elasticdl.sessions.trainer`."""

from elasticdl.sessions.trainer import TFKerasTrainer, Trainer

__all__ = ["TFKerasTrainer", "Trainer"]
