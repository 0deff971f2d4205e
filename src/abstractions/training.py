"""Import path of existing `abstractions` projects; see `elasticdl.sessions.trainer`."""

from elasticdl.sessions.trainer import TFKerasTrainer, Trainer

__all__ = ["TFKerasTrainer", "Trainer"]
