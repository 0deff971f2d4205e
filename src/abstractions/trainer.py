"""An old module name; see `elasticdl.sessions.trainer`."""

from elasticdl.sessions.trainer import TFKerasTrainer, Trainer

__all__ = ["TFKerasTrainer", "Trainer"]
