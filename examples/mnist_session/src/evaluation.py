"""What is asked of each picture of the validation and test data."""

import numpy as np

from abstractions import EvaluatorBase


class RightOrWrong(EvaluatorBase):
    """Whether the digit was recognised, and what it cost if not."""

    def get_eval_funcs(self):
        return {"right": right, "cross_entropy": cross_entropy}


def right(y_true, y_pred):
    return float(np.argmax(y_pred) == y_true)


def cross_entropy(y_true, y_pred):
    logits = np.asarray(y_pred, np.float64)
    logits -= logits.max()
    return float(np.log(np.exp(logits).sum()) - logits[int(y_true)])
