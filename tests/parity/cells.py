"""The cells of the table as tests, in several files: a file is what one process of pytest runs.

Callers: the `test_keras_*.py` and `test_torch.py` beside this file.
"""

from __future__ import annotations

from tests.parity.features import Feature, all_features

FILES = {
    "test_keras_layers": {
        "Convolutions and pooling",
        "Layers",
        "Models",
        "Normalization",
        "Randomness in layers",
        "Regularization",
        "Transfer learning",
    },
    "test_keras_sequences": {
        "Attention",
        "Custom layers",
        "Number formats",
        "Preprocessing layers",
        "Sequences",
    },
    "test_keras_optimizers": {
        "Weight averages",
        "Gradients",
        "Learning rate schedules",
        "Optimizers",
    },
    "test_keras_losses": {"Losses", "Metrics", "Sample and class weights"},
    "test_keras_training": {"Callbacks", "Custom training", "Input"},
}
"""File -> the groups of Keras features it trains; `test_torch` trains all of PyTorch's."""


def features_of(file: str) -> list[Feature]:
    """Return the features that a test file trains."""
    features = all_features()
    if file == "test_torch":
        return [feature for feature in features if feature.framework == "torch"]
    return [f for f in features if f.framework == "keras" and f.group in FILES[file]]
