"""Prebuilt table models with `columns`: numbers, times, categories, sequences, buckets, crosses."""

import keras

from elasticdl.definition import Mode
from elasticdl.zoo.prebuilt import wide_and_deep

GROUP = "Preprocessing layers"
KILLED = True

WEIGHT = {"kind": "number", "column": "weight"}
TEXT = {"kind": "category", "column": "text", "buckets": 50}
TOKENS = {"kind": "sequence", "column": "tokens", "vocabulary": list(range(1, 15))}
BUCKET = {"kind": "bucket", "of": WEIGHT, "boundaries": [0.5, 1.0, 1.5]}
COLUMNS = [
    {"kind": "number", "column": "x", "size": 8, "nullable": True},
    WEIGHT,
    {"kind": "time", "column": "y", "cycles": ["week", "day"]},
    TEXT,
    BUCKET,
    {"kind": "embedding", "of": TOKENS, "dimension": 3, "combiner": "sqrtn"},
    {"kind": "indicator", "of": {"kind": "cross", "of": ["text", BUCKET], "buckets": 12}},
]


class Model(wide_and_deep.Classifier):
    """Three classes of unequal size."""

    def __init__(self):
        super().__init__([6], classes=[0, 1, 2], class_counts=[20, 16, 10], columns=COLUMNS)

    # Adam divides small gradients by themselves, and with them their rounding.
    def default_optimizer(self):
        return keras.optimizers.SGD(0.1)


def plain(data):
    model = Model()
    accuracy = keras.metrics.SparseCategoricalAccuracy(name="accuracy")
    model.compile(
        model.default_optimizer(),
        lambda labels, outputs: model.default_loss(outputs, labels),
        metrics=[accuracy],
    )
    history = model.fit(
        *model.default_input(data.train, Mode.TRAINING),
        class_weight=model.default_class_weight(),
        batch_size=data.batch_size,
        epochs=data.epochs,
        shuffle=False,
        validation_data=model.default_input(data.validation, Mode.EVALUATION),
        verbose=0,
    )
    return history.history, model
