"""The proximal term of FedProx (Li et al., 2020, equation 2, https://arxiv.org/abs/1812.06127).

Its gradient, strength * (w - anchor), is added to that of the loss, so that a weight w stays close
to its anchor: its value in the global model of the round. The reported loss does not include the
term. Anchors and strength are variables, so that one compiled step serves all rounds.

Callers: `trainer.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.training.trainer import Weights


class ProximalTerm:
    """Adds the gradient of the proximal term, which pulls parameters towards given weights.

    Attributes:
        is_on: Whether the term is in use.
    """

    def __init__(self, trainable: Sequence[Any]) -> None:
        self._trainable = trainable
        self._anchors: list[tf.Variable] = []
        self._strength: tf.Variable | None = None
        self.is_on = False

    @property
    def variables(self) -> list[tf.Variable]:
        """The weights to pull towards (anchors) and the strength, which change in each round."""
        return self._anchors + ([] if self._strength is None else [self._strength])

    def release(self) -> None:
        """Stop adding FedProx's proximal term to the gradients."""
        self.is_on = False

    def set_anchor(self, weights: Weights, paths: Sequence[str], strength: float) -> None:
        """Set the anchors and the strength, and start adding the term.

        Args:
            weights: The weights to pull towards (anchors), by name; may contain others.
            paths: The name of each parameter in `weights`.
            strength: mu in the paper.
        """
        self.is_on = True
        if self._strength is None:
            self._anchors = [tf.Variable(v.value, trainable=False) for v in self._trainable]
            self._strength = tf.Variable(0.0, trainable=False)
        for path, anchor in zip(paths, self._anchors, strict=True):
            anchor.assign(weights[path])
        self._strength.assign(strength)

    def added_to(self, gradients: Sequence[Any], optimizer: Any) -> list[Any]:
        """Return the gradients of the loss plus those of the term.

        Args:
            gradients: The gradients of the loss, multiplied by the optimizer's loss scale.
            optimizer: The optimizer, whose loss scale the term is multiplied by as well.
        """
        pulled = []
        for gradient, variable, anchor in zip(
            gradients, self._trainable, self._anchors, strict=True
        ):
            difference = tf.cast(variable.value, tf.float32) - tf.cast(anchor, tf.float32)
            term = optimizer.scale_loss(tf.cast(self._strength * difference, variable.dtype))
            pulled.append(term if gradient is None else tf.convert_to_tensor(gradient) + term)
        return pulled
