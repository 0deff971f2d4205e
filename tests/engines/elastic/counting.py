"""A model that counts what it was trained on: an update says exactly which records are in it."""

import numpy as np

from elasticdl.data.batch import Batch
from elasticdl.training.trainer import Contribution, StepResult


class Hooks:
    """Callbacks that do nothing, but can ask for the end."""

    observes_batches = observes_test_batches = False
    callbacks = ()
    stored = ()
    stop_requested = False

    def __getattr__(self, name):
        return lambda *_, **__: {}


class Metrics:
    """The mean of the loss."""

    ordered = ()

    def results(self, states):
        return {name: float(total / count) for name, (total, count) in states.items()}

    def direction(self, name):
        return None


class CountingTrainer:
    """A `Trainer`: `seen` counts each record, `mean` depends on the order of updates.

    Args:
        num_records: Records are the numbers below this; a batch's features are such numbers.
    """

    keeps_averages = False

    def __init__(self, num_records):
        self.step, self.rank = 0, 0
        self.seen = np.zeros(num_records, np.float32)
        self.mean = np.zeros((), np.float32)
        self.hooks = Hooks()
        self.training_metrics = self.evaluation_metrics = Metrics()

    def gradients(self, batch):
        counts = np.bincount(batch.features, minlength=len(self.seen))
        buffer = np.append(counts, batch.labels.sum()).astype(np.float32)
        result = StepResult(np.float32([0.0]), self.evaluate(batch))
        return Contribution(buffer, batch.num_examples), result

    def apply(self, total):
        self.seen = self.seen + total.buffer[:-1]
        self.mean = self.mean / 2 + total.buffer[-1] / np.float32(total.num_examples)
        self.step += 1

    def finish(self):
        pass

    def evaluate(self, batch, so_far=None):
        return {"loss": (np.float32(batch.labels.sum()), np.float32(batch.num_examples))}

    def state(self):
        return {
            "model/seen": self.seen.copy(),
            "model/mean": np.array(self.mean),
            "optimizer/step": np.array(self.step),
        }

    def load_state(self, state):
        self.seen, self.mean = state["model/seen"].copy(), np.array(state["model/mean"])
        self.step = int(state["optimizer/step"])


def batch_of(*records, labels=None):
    """Return a batch of these records; their labels are the same numbers."""
    features = np.array(records, np.int64)
    labels = features.astype(np.float32) if labels is None else np.float32(labels)
    return Batch(features, labels, len(records))
