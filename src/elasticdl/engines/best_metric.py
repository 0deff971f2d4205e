"""Direction of metrics: infers whether the lowest or the highest value of a metric is the best.

A framework's metric may define it, as in Keras; otherwise its name decides.

Callers: `training_context.py` rejects a metric without a known direction, `loop.py` compares.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from elasticdl.training.trainer import Trainer

Direction: TypeAlias = Literal["min", "max"]

_HIGHEST = frozenset(
    [
        "acc",
        "accuracy",
        "ap",
        "auc",
        "auroc",
        "auprc",
        "bleu",
        "cosine",
        "dice",
        "f1",
        "fbeta",
        "fscore",
        "hit",
        "iou",
        "jaccard",
        "kappa",
        "map",
        "mcc",
        "mrr",
        "ndcg",
        "precision",
        "psnr",
        "r2",
        "recall",
        "rouge",
        "sensitivity",
        "similarity",
        "specificity",
        "ssim",
    ]
)
_LOWEST = frozenset(
    [
        "brier",
        "cer",
        "crossentropy",
        "deviation",
        "divergence",
        "entropy",
        "error",
        "fid",
        "hinge",
        "kld",
        "loss",
        "logloss",
        "logcosh",
        "mae",
        "mape",
        "mse",
        "msle",
        "nll",
        "perplexity",
        "ppl",
        "poisson",
        "rmse",
        "rmsle",
        "wer",
    ]
)


def best_mode_of(metric: str, trainer: Trainer) -> Direction | None:
    """Return whether the lowest or highest value of a metric is best; None if that is unknown.

    Args:
        metric: Name of the metric, with the prefix `val_` for a validation metric.
        trainer: The trainer that measures it.
    """
    name = metric.removeprefix("val_")
    of_validation = name != metric
    metrics = trainer.evaluation_metrics if of_validation else trainer.training_metrics
    return metrics.direction(name) or direction_by_name(name)


def direction_by_name(name: str) -> Direction | None:
    """Infer the direction from a metric's name; None if the name implies neither or both.

    Example:
        >>> direction_by_name("binary_accuracy"), direction_by_name("top5_error")
        ('max', 'min')
    """
    words = set(re.split(r"[^a-z0-9]+", name.lower()))
    lowest = bool(words & _LOWEST)
    highest = bool(words & _HIGHEST) or (
        # Top-k alone means accuracy; the name of a top-k error also contains "error".
        not lowest and any(re.fullmatch(r"top(k|\d+)?", word) for word in words)
    )
    if lowest == highest:
        return None
    return "max" if highest else "min"
