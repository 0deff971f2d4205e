"""Infers from the name of a metric whether low or high values are better.

Callers: `engines/best_metric.py`; `torch/schedulers.py` and `keras/callback_monitors.py`, which
warn of an object for the wrong direction, such as a ReduceLROnPlateau with mode="min" for an
accuracy.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

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
