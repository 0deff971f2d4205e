"""Lets projects import the trainer classes from `abstractions.trainer`, as they already do."""

from elasticdl.sessions.trainer import TFKerasTrainer, Trainer

__all__ = ["TFKerasTrainer", "Trainer"]
