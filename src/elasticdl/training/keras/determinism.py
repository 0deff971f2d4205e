"""Makes TensorFlow use deterministic operations, and restores the previous setting."""

from __future__ import annotations

import tensorflow as tf

# TensorFlow has a public function that turns determinism on, but none that turns it off.
from tensorflow.python.framework import config

_is_ours = False


def be_deterministic() -> None:
    """Make TensorFlow use deterministic operations, for the whole process."""
    global _is_ours  # noqa: PLW0603 - as global as what it is about
    if not config.is_op_determinism_enabled():
        tf.config.experimental.enable_op_determinism()
        _is_ours = True


def restore() -> None:
    """Undo `be_deterministic`, unless operations were deterministic before it."""
    global _is_ours  # noqa: PLW0603
    if _is_ours:
        config.disable_op_determinism()
        _is_ours = False
