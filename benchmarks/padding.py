"""Steps on batches of thirty lengths, compilation included; run by `benchmarks.lengths`.

    python -m benchmarks.padding lstm|transformer ours|gradients|keras

Prints one line of JSON: seconds of the first pass over the batches and of a later one, by the clock
and of processor time.
"""

import json
import sys
import time

import keras
import numpy as np

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.training.keras import KerasTrainer

SIZE, LENGTHS, WORDS, WIDTH = 16, range(10, 40), 100, 16


def lstm():
    layers = keras.layers
    words = keras.Input((None,), dtype="int32")
    states = layers.LSTM(WIDTH)(layers.Embedding(WORDS, WIDTH)(words))
    return keras.Model(words, layers.Dense(1)(states))


def transformer():
    layers = keras.layers
    words = keras.Input((None,), dtype="int32")
    x = layers.Embedding(WORDS, WIDTH)(words)
    for _ in range(2):
        x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, WIDTH // 2)(x, x))
        wide = layers.Dense(2 * WIDTH, activation="relu")(x)
        x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(wide))
    return keras.Model(words, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


def batches():
    rng = np.random.default_rng(0)
    for length in rng.permutation(LENGTHS):
        words = rng.integers(1, WORDS, (SIZE, length)).astype("int32")
        yield Batch(words, rng.normal(size=(SIZE, 1)).astype("float32"), SIZE)


def stepper(create, how, example):
    """Return what makes one step."""
    optimizer = keras.optimizers.Adam(1e-3)
    if how == "keras":
        model = create()
        model.compile(optimizer, "mse")
        return lambda batch: model.train_on_batch(batch.features, batch.labels)
    trainer = KerasTrainer(
        ModelDefinition(
            Origin("benchmark", "padding.py", 1, create.__name__, "zoo"),
            "keras",
            create,
            RecordInput(lambda records: records),
            lambda outputs, labels: keras.ops.mean(keras.ops.square(outputs - labels)),
            lambda: optimizer,
        ),
        example,
        minibatch_size=SIZE,
        deterministic=False,
    )
    if how == "ours":
        return lambda batch: trainer.train_steps([batch])
    return lambda batch: trainer.apply(trainer.gradients(batch)[0])


def main(name, how):
    some = list(batches())
    step = stepper({"lstm": lstm, "transformer": transformer}[name], how, some[0])
    passes = []
    for _ in range(4):
        wall, busy = time.perf_counter(), time.process_time()
        for batch in some:
            step(batch)
        passes.append((time.perf_counter() - wall, time.process_time() - busy))
    later = min(passes[1:])
    print(json.dumps({"first": passes[0], "later": later}))


main(*sys.argv[1:])
