"""Compatibility module: re-exports names of `elasticdl.sessions.trainer`."""

from elasticdl.sessions.trainer import TFKerasTrainer, Trainer

__all__ = ["TFKerasTrainer", "Trainer"]
